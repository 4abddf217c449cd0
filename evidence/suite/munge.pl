# SPDX-License-Identifier: Apache-2.0 OR MIT
# What scripts do to text: count words and pairs of them, turn dates round, take
# addresses apart, and sort it all.
use strict;
use warnings;

my (%count, %pair, %domain, %month);
my $check = 0;
open my $in, '<', $ARGV[0] or die "$ARGV[0]: $!";
while (my $line = <$in>) {
    last if $. > $ARGV[1];
    chomp $line;
    if ($line =~ s/(\d{4})-(\d\d)-(\d\d)/$3.$2.$1/) { $month{$2}++ }
    $domain{$2} .= "$1;" while $line =~ /(\w+)@(\w+)\.example/g;
    my @words = map { ucfirst lc } split /\s+/, $line;
    $count{$_}++ for @words;
    $pair{"$words[$_] $words[$_ + 1]"}++ for 0 .. $#words - 1;
    $line =~ tr/a-m/n-z/;
    $check = ($check * 31 + unpack('%32C*', $line)) % 4294967291;
}
my @often = sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count;
printf "%6d %s\n", $count{$_}, $_ for @often[0 .. 9];
my @pairs = sort { $pair{$b} <=> $pair{$a} || $a cmp $b } keys %pair;
printf "%6d %s\n", $pair{$_}, $_ for @pairs[0 .. 9];
printf "%d words, %d pairs, %d domains, %d months, check %d\n", scalar @often, scalar @pairs, scalar keys %domain, scalar keys %month, $check;

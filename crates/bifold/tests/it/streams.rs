// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the command does with its streams: a closed stdout, a reader that has gone, a locale of ASCII.

use crate::command::{command, ran};
use std::process::Command;

/// A shell's line in which `bifold` is the command.
fn shell(line: &str) -> Command {
    let mut c = Command::new("sh");
    c.args(["-c", &format!("bifold() {{ {} \"$@\"; }}; {line}", env!("CARGO_BIN_EXE_bifold"))]);
    c.env("LC_ALL", "C.UTF-8").stdin(std::process::Stdio::null());
    c
}

#[test]
fn a_closed_stdout_is_an_error_and_a_reader_that_has_gone_is_none() {
    let lines = [
        "profile list",
        "compare --generate t:1000",
        "compare --generate t:1000 --format json",
        "--help",
        "doctor",
        "completions bash",
    ];
    for line in lines {
        let closed = ran(shell(&format!("bifold {line} >&-")));
        assert_eq!(closed.status, 1, "{line}");
        assert!(closed.stderr.starts_with("bifold: stdout is closed: "), "{line}: {}", closed.stderr);
    }
    assert_eq!(ran(shell("bifold compare -- true >&-")).status, 125, "1 is the command's");
    // /dev/null opened to read and write is what the runtime puts in place of a closed stdout.
    for to in ["> /dev/null", "<> /dev/null >&0", "1<> /dev/null", "| head -n 1"] {
        let open = ran(shell(&format!("bifold profile list {to}")));
        assert_eq!((open.status, open.stderr.as_str()), (0, ""), "{to}");
    }
}

#[test]
fn in_the_c_locale_text_for_people_is_ascii_and_data_are_as_ever() {
    let in_locale = |args: &str, locale: Option<&str>| {
        let mut c = command(args.split(' '));
        for variable in ["LC_ALL", "LC_CTYPE", "LANG"] {
            c.env_remove(variable);
        }
        if let Some(locale) = locale {
            c.env("LC_ALL", locale);
        }
        ran(c).quietly()
    };
    let table = "compare -q --generate pointer-chase:200000 --show exits,policies,checks";
    let rich = in_locale(table, Some("C.UTF-8"));
    assert!(rich.contains("overheads ± ") && rich.contains('─'), "{rich}");
    for locale in [None, Some("C"), Some("de_DE.ISO-8859-1")] {
        let text = in_locale(table, locale);
        assert!(text.is_ascii() && text.contains("overheads +- "), "{locale:?}: {text}");
    }
    let data = "compare -q --generate t:1000 --format json";
    assert_eq!(in_locale(data, Some("C")), in_locale(data, Some("C.UTF-8")));
}

#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# A key-value server and its own load generator over a Unix socket: keys are stored all
# over a large space, then read and changed at random.
#   redis.sh KEYS REQUESTS
work=$(mktemp -d) || exit 1
socket=$work/socket
# In Debian the server is this program under another name.
ln -s "$(command -v redis-check-rdb)" "$work/redis-server"
"$work/redis-server" --port 0 --unixsocket "$socket" --save '' --appendonly no --activerehashing no --hz 1 --dir "$work" >"$work/log" &
server=$!
while [ ! -S "$socket" ]; do sleep 0.05; done
# By the server itself: that many keys of 100 bytes.
redis-cli -s "$socket" debug populate "$1" key 100
redis-benchmark -s "$socket" -q -c 8 -P 8 -n "$2" -r "$1" get 'key:__rand_int__' | tail -n 1 | cut -d: -f1
redis-benchmark -s "$socket" -q -c 8 -P 8 -n "$2" -r "$1" -d 100 -t set,incr,hset >/dev/null
redis-cli -s "$socket" dbsize
redis-cli -s "$socket" shutdown nosave
wait "$server"
rm -r "$work"

# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and guest
# Stores: redis and memcached. See lib.sh for what the functions of a case are.

# redis NAME PORT OPTION...: a server on the server's library.
redis() {
    local name=$1 port=$2
    shift 2
    mkdir -p "$name.dir"
    serve "$name" "$port" redis-server --bind "$ADDR" --port "$port" --protected-mode no --daemonize no \
        --enable-debug-command yes --dir "$PWD/$name.dir" --save '' "$@"
}

# ask PORT COMMAND...: redis-cli's answer in `answer`.
asked=0
ask() {
    local port=$1
    shift
    asked=$((asked + 1))
    client "cli$asked" redis-cli -h "$ADDR" -p "$port" "$@"
    answer=$(<"cli$asked.out")
}
expect_answer() {
    local wanted=$1
    shift
    ask "$@"
    [ "$answer" = "$wanted" ] || fail "redis-cli $*: ${answer:0:80} instead of ${wanted:0:80}"
}

# Writes keys of each kind and $1 values of $2 bytes, with one client that sends everything before it reads.
fill() {
    local i text
    text=$(head -c $(($2 * 3 / 4)) /dev/urandom | base64 -w 0)
    asked=$((asked + 1))
    {
        for ((i = 0; i < $1; i++)); do echo "SET value$i ${text:i}"; done
        echo 'RPUSH list a b c d'
        echo 'HSET hash name redis kind store'
        echo 'ZADD zset 1 one 2 two 3 three'
        echo 'INCRBY counter 41'
        echo 'INCR counter'
    } >"cli$asked.in"
    client "cli$asked" redis-cli -h "$ADDR" -p "${3:-6379}"
    [ "$(grep -cx OK "cli$asked.out") $(tail -n 1 "cli$asked.out")" = "$1 42" ] ||
        fail "answers to the filling: $(tail -n 1 "cli$asked.out")"
    payload $(($1 * $2))
}

case_redis_cli() {
    redis server 6379
    head -c 150000 /dev/urandom | base64 -w 0 >text
    cp text cli1.in
    expect_answer OK 6379 -x SET large
    expect_answer "$(<text)" 6379 GET large
    fill 20 4000
    expect_answer $'a\nb\nc\nd' 6379 LRANGE list 0 -1
    expect_answer 42 6379 GET counter
    payload 400000
    ask 6379 SHUTDOWN NOSAVE
    finish_server server
    fact "values of 200000 and 4000 bytes, lists, counters"
}

case_redis_benchmark() {
    redis server 6379
    client client redis-benchmark -h "$ADDR" -p 6379 -n 2000 -c 10 -d 1000 -t set,get,lpush -q
    [ "$(tr '\r' '\n' <client.out | grep -cE '^(SET|GET|LPUSH): [0-9.]+ requests per second')" = 3 ] ||
        fail "not three results: $(last_words client)"
    expect_answer 2000 6379 LLEN mylist
    stop_server
    payload 6000000
    fact "$(tr '\r' '\n' <client.out | sed -n -E 's/^([A-Z]+): ([0-9]+).* requests per second.*/\1 \2\/s/p' | paste -sd' ')"
}

digest() {
    ask "$1" DEBUG DIGEST
    [[ $answer =~ ^[0-9a-f]{40}$ ]] || fail "no digest: $answer"
}

snapshot_done() { plain redis-check-rdb server.dir/dump.rdb; }

# A snapshot by a forked child, then the append-only file, rewritten by another child; a new server reads them.
case_redis_persistence() {
    local before
    redis server 6379
    fill 50 20000
    digest 6379
    before=$answer
    ask 6379 BGSAVE
    until_true "no snapshot" snapshot_done
    ask 6379 SHUTDOWN NOSAVE
    finish_server server
    redis server 6379
    digest 6379
    [ "$answer" = "$before" ] || fail "the data differs after a restart from the snapshot"
    expect_answer OK 6379 CONFIG SET appendonly yes
    expect_answer OK 6379 SET late value
    digest 6379
    before=$answer
    ask 6379 SHUTDOWN
    finish_server server
    redis server 6379 --appendonly yes
    digest 6379
    [ "$answer" = "$before" ] || fail "the data differs after a restart from the append-only file"
    stop_server
    fact "1 MB through a snapshot and an append-only file"
}

# The replica, with the client's library, synchronises over its own connection, and then receives updates.
case_redis_replication() {
    local primary before
    redis server 6379 --repl-diskless-sync-delay 0
    primary=$server
    fill 50 20000
    digest 6379
    before=$answer
    mkdir replica.dir
    start_client replica redis-server --bind "$ADDR" --port 6380 --protected-mode no --daemonize no \
        --enable-debug-command yes --dir "$PWD/replica.dir" --save '' --replicaof "$ADDR" 6379
    server=$started
    SERVER_LIB=$CLIENT_LIB await_listener 6380 "$server" || fail "the replica does not listen: $(last_words replica)"
    until_true "no full synchronisation: $(last_words replica)" grep -q 'MASTER <-> REPLICA sync: Finished with success' replica.out
    digest 6380
    [ "$answer" = "$before" ] || fail "the replica's data differs"
    asked=$((asked + 1))
    printf 'SET late value\nWAIT 1 0\n' >"cli$asked.in"
    client "cli$asked" redis-cli -h "$ADDR" -p 6379
    [ "$(tail -n 1 "cli$asked.out")" = 1 ] || fail "the replica does not follow"
    expect_answer value 6380 GET late
    stop_server
    server=$primary
    stop_server
    payload 1000000
    fact "1 MB to a replica, which then follows"
}

# memcached's tools, and a client that writes and reads values of up to 900 KB.
case_memcached() {
    random value 600000
    serve server 11211 memcached -l "$ADDR" -p 11211 -U 0 -u root -t 2
    client put memccp "--servers=$ADDR:11211" value
    client get memccat "--servers=$ADDR:11211" value
    head -c 600000 get.out >got
    same value got
    client client python3 "$here/apps/memcached_client.py" "$ADDR" 11211
    stop_server
    payload $((1200000 + $(<client.out)))
    fact "$(<client.out) bytes with a client in Python, 600000 with memccp and memccat"
}

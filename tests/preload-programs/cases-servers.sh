# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and guest
# Servers with several processes that share or pass on their listeners. See lib.sh for the functions of a case.

lines() { [ "$(grep -c "$1" "$2")" -ge "$3" ]; }

# reloads SIGNAL TEXT FILE FIRST STEP: three reloads during transfers whose client does not read, and beside many short ones. TEXT,
# a line of FILE for each new worker, stands there FIRST times before, and STEP times more after each.
reloads() {
    local i many slow=() pipe=() fd reader
    for i in 1 2 3 4; do
        mkfifo "pipe$i"
        exec {fd}<>"pipe$i"
        pipe[i]=$fd
        start_client "slow$i" curl -sS --fail -D "headers$i" -o "pipe$i" "http://$ADDR:8080/large"
        slow[i]=$started
    done
    start_client many curl -sS --fail -H "Connection: close" -o 'part-#1' "http://$ADDR:8080/small?[1-100]"
    many=$started
    for i in 1 2 3 4; do until_true "transfer $i does not begin" test -s "headers$i"; done
    for i in 1 2 3; do
        kill "-$1" "$server"
        until_true "no worker after reload $i" lines "$2" "$3" $(($4 + i * $5))
    done
    for i in 1 2 3 4; do kill -0 "${slow[i]}" || fail "transfer $i ended before the reloads"; done
    finish "$many" || fail "a short request is lost: $(last_words many)"
    for ((i = 1; i <= 100; i++)); do same www/small "part-$i"; done
    for i in 1 2 3 4; do
        head -c 5000000 <&"${pipe[i]}" >"large$i" &
        reader=$!
        finish "${slow[i]}" || fail "transfer $i is lost: $(last_words "slow$i")"
        wait "$reader"
        same www/large "large$i"
    done
    fact "3 reloads during 4 transfers and 100 short connections"
}

nginx_reload_case() {
    nginx_server "worker_processes 2" "error_log $PWD/notice.log notice"
    reloads HUP 'start worker process ' notice.log 2 2
    stop_server
}

# Listeners with SO_REUSEPORT are TCP's.
case_nginx_reuseport() {
    : >stays-tcp
    nginx_listen=" reuseport" nginx_reload_case
    payload 21000000
}
# The first accept of a worker makes the listener TCP's; how many connections RDMA has before is not fixed.
case_nginx_reload() { nginx_reload_case; }

# More than 1,024 connections wait at once for another process than the one of the listener.
case_prefork_many() {
    local answer
    mkfifo client.in
    exec {answer}<>client.in
    serve server 9020 python3 -u "$here/apps/prefork_many.py" server "$ADDR" 9020
    start_client client python3 -u "$here/apps/prefork_many.py" client "$ADDR" 9020
    until_true "the clients do not connect: $(last_words client)" grep -q connected client.out
    kill -USR1 "$server"
    echo >&"$answer"
    finish "$started" || fail "client: $(last_words client)"
    [ "$(tail -n 1 client.out)" = "served 1100" ] || fail "$(last_words client)"
    stop_server
    fact "1,100 connections at once before the first accept"
}

# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and guest
# Servers with several processes that share or pass on their listeners. See lib.sh for the functions of a case.

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

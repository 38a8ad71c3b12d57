# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and guest
# HTTP: nginx with sendfile, and Python's own server. See lib.sh for what the functions of a case are.

pages() {
    mkdir -p www
    random www/large 5000000
    random www/small 10000
    : >www/empty
}

# nginx_server DIRECTIVE...: a server on port 8080, or $nginx_port, listening with $nginx_listen; the directives stand outside
# of http.
nginx_server() {
    local port=${nginx_port:-8080}
    pages
    mkdir -p tmp
    {
        printf '%s;\n' "$@" "daemon off" "user root" "pid $PWD/nginx.pid" "error_log $PWD/error.log warn"
        cat <<CONF
events { worker_connections 200; }
http {
    access_log off;
    sendfile on;
    keepalive_requests 100000;
    client_body_temp_path $PWD/tmp/body;
    proxy_temp_path $PWD/tmp/proxy;
    fastcgi_temp_path $PWD/tmp/fastcgi;
    uwsgi_temp_path $PWD/tmp/uwsgi;
    scgi_temp_path $PWD/tmp/scgi;
    server { listen $ADDR:$port${nginx_listen:-}; root $PWD/www; }
}
CONF
    } >nginx.conf
    serve server "$port" nginx -p "$PWD" -e "$PWD/error.log" -c "$PWD/nginx.conf"
}

# curl with one connection for several files, parts of a file, and several parallel connections.
case_nginx_curl() {
    local url=http://$ADDR:8080
    command -v curl >/dev/null || cannot "curl is not installed"
    nginx_server "master_process off"
    client curl1 curl -sS --fail -o one "$url/large" -o two "$url/small" -o three "$url/empty"
    same www/large one
    same www/small two
    [ ! -s three ] || fail "the empty file is not empty"
    client curl2 curl -sS --fail -r 1234567-2345678 -o part "$url/large"
    tail -c +1234568 www/large | head -c 1111112 >expected
    same expected part
    client curl3 curl -sS --fail -Z -o 'at-once-#1' "$url/large?[1-4]"
    for i in 1 2 3 4; do same www/large "at-once-$i"; done
    client curl4 curl -sS -o /dev/null -w '%{http_code}' "$url/none"
    [ "$(<curl4.out)" = 404 ] || fail "status $(<curl4.out) for a missing file"
    stop_server
    payload 26000000
    fact "26 MB in 8 answers, parts and parallel ones included"
}

# 40 transfers of one process with curl's multi interface.
case_curl_multi() {
    local i
    command -v curl >/dev/null || cannot "curl is not installed"
    nginx_server "master_process off"
    client curl curl -sS --fail -Z --parallel-immediate --parallel-max 20 -o 'part-#1' "http://$ADDR:8080/small?[1-40]"
    for ((i = 1; i <= 40; i++)); do same www/small "part-$i"; done
    stop_server
    payload 400000
    fact "40 transfers, 20 at once"
}

case_nginx_ab() {
    nginx_server "master_process off"
    client ab ab -q -n 300 -c 8 -k "http://$ADDR:8080/small"
    stop_server
    [ "$(grep -cE '^(Complete requests: +300|Failed requests: +0|HTML transferred: +3000000 bytes)$' ab.out)" = 3 ] ||
        fail "not 300 good answers: $(grep -E '^(Complete|Failed)' ab.out | tr -s ' \n' ' ')"
    payload 3000000
    fact "$(sed -n -E 's/^Requests per second: +([0-9]+).*/\1 requests\/s/p' ab.out), 8 connections"
}

case_nginx_wrk() {
    local count
    nginx_server "master_process off"
    client wrk wrk -t 1 -c 4 -d 2s "http://$ADDR:8080/small"
    stop_server
    ! grep -qE 'Socket errors|Non-2xx' wrk.out || fail "$(grep -m 1 -E 'Socket errors|Non-2xx' wrk.out)"
    count=$(sed -n -E 's/^ +([0-9]+) requests in .*/\1/p' wrk.out)
    [ "${count:-0}" -gt 0 ] || fail "no request: $(last_words wrk)"
    payload $((count * 10000))
    fact "$count requests, 4 connections"
}

# The usual setup: a master that listens, and forks workers that accept.
case_nginx_workers() {
    extra_env=(RDMAV_FORK_SAFE=1)
    command -v curl >/dev/null || cannot "curl is not installed"
    nginx_server "worker_processes 2"
    client curl1 curl -sS --fail -o one "http://$ADDR:8080/large"
    same www/large one
    client curl2 curl -sS --fail -o two "http://$ADDR:8080/small"
    same www/small two
    stop_server
    payload 5010000
    fact "5 MB from forked workers, fork support on"
}

case_http_server() {
    pages
    serve server 8000 python3 -u -m http.server -b "$ADDR" -d www 8000
    client client python3 "$here/apps/http_client.py" "http://$ADDR:8000" www
    stop_server
    payload "$(<client.out)"
    fact "$(<client.out) bytes by urllib, up to 4 connections at once"
}

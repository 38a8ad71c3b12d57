# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and guest
# Servers with several processes that share or pass on their listeners. See lib.sh for the functions of a case.

lines() { [ "$(grep -c "$1" "$2")" -ge "$3" ]; }

# reloads SIGNAL TEXT FILE FIRST STEP [COUNT]: three reloads, or COUNT, during transfers whose client does not read, and
# beside many short ones. TEXT, a line of FILE for each new worker, stands there FIRST times before, and STEP times more
# after each.
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
    for ((i = 1; i <= ${6:-3}; i++)); do
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
    fact "${6:-3} reloads during 4 transfers and 100 short connections"
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

# fetch_files PORT: several files on a connection, several connections at once, and 300 requests, on connections kept alive
# unless `keep` is empty.
keep=(-k)
fetch_files() {
    local url=http://$ADDR:$1 i
    client "curl1-$1" curl -sS --fail -o one "$url/large" -o two "$url/small"
    same www/large one
    same www/small two
    client "curl2-$1" curl -sS --fail -Z --parallel-immediate -o 'at-once-#1' "$url/large?[1-4]"
    for i in 1 2 3 4; do same www/large "at-once-$i"; done
    client "ab-$1" ab -q -n 300 -c 8 "${keep[@]}" "$url/small"
    [ "$(grep -cE '^(Complete requests: +300|Failed requests: +0|HTML transferred: +3000000 bytes)$' "ab-$1.out")" = 3 ] ||
        fail "not 300 good answers: $(grep -E '^(Complete|Failed)' "ab-$1.out" | tr -s ' \n' ' ')"
    fact "5 transfers by curl, 300 requests by ab"
}

# apache_case MPM DIRECTIVE...: workers of another user.
apache_case() {
    pages
    {
        printf '%s\n' "LoadModule mpm_$1_module $SERVICES/usr/lib/apache2/modules/mod_mpm_$1.so" "${@:2}"
        cat <<CONF
LoadModule authz_core_module $SERVICES/usr/lib/apache2/modules/mod_authz_core.so
ServerRoot $PWD
DefaultRuntimeDir $PWD
PidFile $PWD/apache.pid
ErrorLog $PWD/error.log
ServerName server
User nobody
Group nogroup
Listen $ADDR:8088
DocumentRoot $PWD/www
<Directory />
Require all granted
</Directory>
KeepAlive On
MaxKeepAliveRequests 0
StartServers 3
CONF
    } >apache.conf
    # At its end apache kills its process group.
    serve server 8088 setsid apache2 -f "$PWD/apache.conf" -D FOREGROUND
    fetch_files 8088
    stop_server
}
case_apache_prefork() { apache_case prefork "LoadModule mime_module $SERVICES/usr/lib/apache2/modules/mod_mime.so" "TypesConfig /dev/null"; }
# Busy workers close connections that are kept alive, over TCP, too.
case_apache_event() { keep=() && apache_case event "ThreadsPerChild 8" "MaxRequestWorkers 24"; }

# cluster PORT POLICY
cluster() {
    full=yes
    pages
    [ -e /usr/share/nodejs/acorn ] || cp -an "$SERVICES/usr/share/nodejs" /usr/share/
    serve server "$1" "$SERVICES/usr/bin/node" "$here/apps/cluster.js" "$ADDR" "$1" "$2"
    fetch_files "$1"
    stop_server
}
case_node_cluster() { cluster 9013 rr; }
# The workers listen, with a socket that the first process has bound.
case_node_cluster_shared() { : >stays-tcp && cluster 9014 none; }

# python_workers PORT MODULE ARGUMENT...
python_workers() {
    pages
    serve server "$1" env "PYTHONPATH=$SERVICES/usr/lib/python3/dist-packages:$here/apps" "WWW=$PWD/www" python3 -m "${@:2}"
    fetch_files "$1"
    stop_server
}
case_gunicorn_sync() { python_workers 8011 gunicorn -w 2 -b "$ADDR:8011" files_wsgi:app; }
case_gunicorn_gthread() { python_workers 8012 gunicorn -w 2 -k gthread --threads 4 -b "$ADDR:8012" files_wsgi:app; }
# The workers listen, too.
case_uvicorn_workers() {
    : >stays-tcp
    python_workers 8013 uvicorn --workers 2 --host "$ADDR" --port 8013 --loop asyncio --http h11 --log-level warning files_asgi:app
}

# The worker is another user in another root; reloads pass the listeners on.
case_haproxy_reload() {
    local nginx
    nginx_port=8081 nginx_server "master_process off"
    nginx=$server
    mkdir empty
    cat >haproxy.cfg <<CONF
global
    chroot $PWD/empty
    user nobody
    group nogroup
    stats socket $PWD/stats level admin expose-fd listeners
$(haproxy_config)
CONF
    # haproxy's default is SO_REUSEPORT.
    : >stays-tcp
    serve server 8080 haproxy -W -f haproxy.cfg
    # It misses a second signal while it executes itself anew.
    reloads USR2 'Loading success' server.err 1 1 1
    stop_server
    server=$nginx
    stop_server
}

case_pgbouncer() {
    local postgresql
    postgresql_server
    postgresql=$server
    cat >pgbouncer.ini <<CONF
[databases]
postgres = host=$ADDR port=5432 user=postgres
[pgbouncer]
listen_addr = $ADDR
listen_port = 6432
unix_socket_dir =
auth_type = any
pool_mode = transaction
CONF
    serve server 6432 "${as[@]}" "$SERVICES/usr/sbin/pgbouncer" pgbouncer.ini
    postgresql_clients 6432
    stop_server
    kill -INT "$postgresql"
    finish "$postgresql"
    fact "500 rows by psql, 100 transactions of pgbench with 4 clients, through pgbouncer"
}

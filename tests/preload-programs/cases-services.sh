# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and guest
# Proxies, databases and git: programs with processes and users of their own. See lib.sh for the functions of a case.

# Words before a command that run it as a user without rights: postgres refuses root.
as=(setpriv --reuid=65534 --regid=65534 --clear-groups)

# A proxy at port 8080, with nginx behind it at 8081.
haproxy_config() {
    cat <<CONF
defaults
    mode http
    timeout connect 60s
    timeout client 60s
    timeout server 60s
frontend front
    bind $ADDR:8080
    default_backend back
backend back
    server one $ADDR:8081
CONF
}

# haproxy in front of nginx, both on the server's library, so that they use RDMA also where curl does not; without
# SO_REUSEPORT, haproxy's default, whose listeners are TCP's (haproxy_reload).
case_haproxy() {
    local proxy bytes=2000000
    : >servers-by-rdma
    nginx_port=8081 nginx_server "master_process off"
    proxy=$server
    { printf '%s\n' global '    noreuseport' && haproxy_config; } >haproxy.cfg
    serve server 8080 haproxy -db -f haproxy.cfg
    head -c 500000 www/large >www/middle
    client curl1 curl -sS --fail -o one "http://$ADDR:8080/middle" -o two "http://$ADDR:8080/small"
    same www/middle one
    same www/small two
    client curl2 curl -sS --fail -Z -o 'at-once-#1' "http://$ADDR:8080/middle?[1-3]"
    for i in 1 2 3; do same www/middle "at-once-$i"; done
    stop_server
    server=$proxy
    stop_server
    [ "$CLIENT_LIB" = plain ] || bytes=$((2 * bytes))
    payload "$bytes"
    fact "2 MB through the proxy, 3 connections at once"
}

# pg PROGRAM ARGUMENT...: sets pg to the words of one of PostgreSQL's programs.
pg() { pg=("${as[@]}" "$SERVICES/usr/lib/postgresql/15/bin/$1" "${@:2}"); }

# A process for each client, and another user than root; 2 parallel workers share no socket.
postgresql_server() {
    full=yes # pgbench waits by ppoll(2)
    mkdir database
    chown 65534 . database
    pg initdb -D database -U postgres -A trust -N --locale=C --encoding=UTF8
    must initdb plain "${pg[@]}"
    echo 'host all all all trust' >>database/pg_hba.conf
    pg postgres -D database -h "$ADDR" -p 5432 -k "" -c fsync=off -c jit=off -c shared_buffers=16MB
    serve server 5432 "${pg[@]}"
}

# postgresql_clients PORT: 500 rows by psql, 100 transactions by pgbench.
postgresql_clients() {
    local rows psql=$SERVICES/usr/lib/postgresql/15/bin/psql
    { echo "create table texts (n int, body text);"
        echo "insert into texts select n, repeat(md5(n::text), 100) from generate_series(1, 500) n;"; } >psql1.in
    client psql1 "$psql" -h "$ADDR" -p "$1" -U postgres -v ON_ERROR_STOP=1 postgres
    client psql2 "$psql" -h "$ADDR" -p "$1" -U postgres -Atc "select n, body from texts order by n" postgres
    rows=$(awk -F'|' 'length($2) == 3200 && $1 == NR' psql2.out | wc -l)
    [ "$rows" = 500 ] || fail "$rows of 500 rows"
    pg pgbench -i -q -h "$ADDR" -p "$1" -U postgres postgres
    client fill "${pg[@]}"
    pg pgbench -n -c 4 -j 2 -t 25 -h "$ADDR" -p "$1" -U postgres postgres
    client bench "${pg[@]}"
    grep -q 'transactions actually processed: 100/100' bench.out || fail "pgbench: $(grep processed bench.out)"
}

case_postgresql() {
    postgresql_server
    postgresql_clients 5432
    kill -INT "$server"
    finish_server server
    payload 3000000
    fact "500 rows by psql, 100 transactions of pgbench with 4 clients"
}

case_mariadb() {
    local share=$SERVICES/usr/share/mysql rows
    local base=(mariadbd --no-defaults --user=root "--datadir=$PWD/data" "--lc-messages-dir=$share" "--character-sets-dir=$share/charsets"
        --skip-grant-tables --innodb=OFF --default-storage-engine=Aria --aria-pagecache-buffer-size=8M)
    mkdir data data/mysql
    { echo 'use mysql;'
        cat "$share/mysql_system_tables.sql" "$share/mysql_system_tables_data.sql"; } >bootstrap.sql
    must "mariadbd --bootstrap" plain "${base[@]}" --bootstrap <bootstrap.sql
    serve server 3306 "${base[@]}" "--socket=$PWD/socket" "--bind-address=$ADDR" --port=3306
    { echo "create database d; use d; create table texts (n int primary key, body text);"
        echo "insert into texts select seq, repeat(md5(seq), 100) from seq_1_to_500;"; } >sql1.in
    client sql1 mariadb --no-defaults -h "$ADDR"
    client sql2 mariadb --no-defaults -h "$ADDR" -N -B -e "select n, body from d.texts order by n"
    rows=$(awk -F'\t' 'length($2) == 3200 && $1 == NR' sql2.out | wc -l)
    [ "$rows" = 500 ] || fail "$rows of 500 rows"
    client slap mariadb-slap --no-defaults -h "$ADDR" --auto-generate-sql --concurrency=4 --number-of-queries=100
    grep -q 'Average number of queries per client: 25' slap.out || fail "mariadb-slap: $(last_words slap)"
    stop_server
    payload 1600000
    fact "500 rows, 100 queries of mariadb-slap with 4 clients"
}

# A bare repository, served.git, with one commit; git's command in `git`.
git_repository() {
    git=(env "GIT_EXEC_PATH=$SERVICES/usr/lib/git-core" "HOME=$PWD" GIT_CONFIG_NOSYSTEM=1
        "GIT_SSH_COMMAND=$SERVICES/usr/bin/ssh -F $PWD/ssh_config" "$SERVICES/usr/bin/git")
    mkdir tree
    random tree/large 800000
    echo text >tree/text
    printf '[user]\nname = n\nemail = n@localhost\n[safe]\ndirectory = *\n[init]\ndefaultBranch = main\n' >.gitconfig
    must "git init" plain "${git[@]}" init -q tree
    must "git add" plain "${git[@]}" -C tree add .
    must "git commit" plain "${git[@]}" -C tree commit -q -m one
    must "git clone" plain "${git[@]}" clone -q --bare tree served.git
}

# git_round URL: clones the repository, pushes a commit to it, and ends the server.
git_round() {
    client clone "${git[@]}" clone -q "$1" cloned
    same tree/large cloned/large
    random cloned/more 400000
    must "git add" plain "${git[@]}" -C cloned add .
    must "git commit" plain "${git[@]}" -C cloned commit -q -m two
    client push "${git[@]}" -C cloned push -q origin main
    must "git fsck" plain "${git[@]}" -C served.git fsck
    must "the pushed file differs" cmp <(plain "${git[@]}" -C served.git show main:more) cloned/more
    kill -TERM "$server"
    finish "$server"
    payload 1200000
    fact "800 KB cloned, 400 KB pushed"
}

# git's daemon has a process for each client, which becomes git-upload-pack on the socket.
case_git_daemon() {
    git_repository
    serve server 9418 "${git[@]}" daemon --reuseaddr "--listen=$ADDR" --port=9418 --export-all --enable=receive-pack "--base-path=$PWD" "$PWD"
    git_round "git://$ADDR/served.git"
}

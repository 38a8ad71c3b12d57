# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and guest
# ssh, and programs that move files and messages. See lib.sh for the functions of a case.

# ssh_server VARIABLE=VALUE...: an sshd whose sessions have these variables; the words of ssh, with ssh_config, in `ssh`.
ssh_server() {
    : >stays-tcp
    full=yes # ssh waits by ppoll(2)
    mkdir -p /run/sshd
    grep -q '^sshd:' /etc/passwd || echo 'sshd:x:104:65534::/run/sshd:/usr/sbin/nologin' >>/etc/passwd
    must "ssh-keygen" plain ssh-keygen -q -t ed25519 -N '' -f host
    must "ssh-keygen" plain ssh-keygen -q -t ed25519 -N '' -f user
    cat >sshd_config <<CONF
ListenAddress $ADDR:2222
HostKey $PWD/host
AuthorizedKeysFile $PWD/user.pub
PidFile none
StrictModes no
PermitRootLogin yes
UsePAM no
Subsystem sftp $SERVICES/usr/lib/openssh/sftp-server
${1:+SetEnv $*}
CONF
    cat >ssh_config <<CONF
Host server
    HostName $ADDR
    Port 2222
    User root
    IdentityFile $PWD/user
    UserKnownHostsFile $PWD/known
    StrictHostKeyChecking accept-new
CONF
    ssh=("$SERVICES/usr/bin/ssh" -F "$PWD/ssh_config")
    serve server 2222 "$SERVICES/usr/sbin/sshd" -D -e -f "$PWD/sshd_config"
}
stop_sshd() {
    kill -TERM "$server"
    finish "$server"
}

# Privilege separation: for each client a process, which executes sshd anew, and in it one of another user.
case_sshd() {
    ssh_server
    random up 500000
    cp up ssh1.in
    client ssh1 "${ssh[@]}" server "cat >'$PWD/received' && cat '$PWD/received'"
    same up received
    same up ssh1.out
    client scp "$SERVICES/usr/bin/scp" -q -S "${ssh[0]}" "${ssh[@]:1}" "server:$PWD/up" copy
    same up copy
    stop_sshd
    payload 1500000
    fact "1.5 MB by ssh and scp, with privilege separation"
}

# The process that connects ends after the login; its child goes on with the connection, in the background.
case_ssh_background() {
    local mux
    ssh_server
    random up 500000
    client ssh "${ssh[@]}" -f server "while [ ! -e '$PWD/go' ]; do sleep 0.1; done; cat '$PWD/up'"
    [ ! -s ssh.out ] || fail "output before the first process's end"
    : >go
    until_true "the output is not complete" cmp up ssh.out
    # The first session's process ends, and its child serves the next sessions, on the same connection.
    mux=("${ssh[@]}" -S "$PWD/mux" -o ControlMaster=auto -o ControlPersist=yes)
    client mux1 "${mux[@]}" server "echo \$SSH_CONNECTION"
    cp up mux2.in
    client mux2 "${mux[@]}" server "cat && echo \$SSH_CONNECTION >'$PWD/second'"
    same up mux2.out
    same mux1.out second
    client mux3 "${mux[@]}" -O exit server
    until_true "the master does not end" test ! -e mux
    stop_sshd
    payload 1500000
    fact "500 KB by ssh -f, 1 MB by a later session of ControlPersist"
}

case_git_ssh() {
    git_repository
    ssh_server "PATH=$tools_bin:/usr/bin:/bin" "LD_LIBRARY_PATH=$tools_lib" "GIT_CONFIG_GLOBAL=$PWD/.gitconfig"
    git_round "server:$PWD/served.git"
}

# vsftpd makes its processes with clone(2) by syscall(3), and limits their address space: by a rule of the library it uses
# TCP. Each file has a connection of its own, which the client makes, or the server (active mode).
case_vsftpd() {
    local passive open
    : >stays-tcp
    mkdir -p ftp/up ftp/tree empty
    grep -q '^ftp:' /etc/passwd || echo 'ftp:x:105:65534::/:/usr/sbin/nologin' >>/etc/passwd
    chown ftp ftp/up
    random ftp/large 3000000
    random ftp/tree/one 100000
    echo two >ftp/tree/two
    random sent 700000
    cat >vsftpd.conf <<CONF
listen=YES
listen_address=$ADDR
listen_port=2121
background=NO
anon_root=$PWD/ftp
nopriv_user=nobody
secure_chroot_dir=$PWD/empty
no_anon_password=YES
write_enable=YES
anon_upload_enable=YES
anon_umask=022
xferlog_enable=YES
vsftpd_log_file=$PWD/vsftpd.log
CONF
    serve server 2121 vsftpd "$PWD/vsftpd.conf"
    open="set net:max-retries 1; open -u anonymous,none -p 2121 $ADDR"
    for passive in on off; do
        client "lftp-$passive" env "HOME=$PWD" lftp -c "set ftp:passive-mode $passive; $open && get large -o got-$passive &&
            pget -n 3 large -o parts-$passive && put sent -o up/sent-$passive && mirror tree tree-$passive"
        same ftp/large "got-$passive"
        same ftp/large "parts-$passive"
        same sent "ftp/up/sent-$passive"
        must "the fetched folder differs" diff -r ftp/tree "tree-$passive"
    done
    client curl1 curl -sS -o by-curl "ftp://$ADDR:2121/large"
    client curl2 curl -sS -T sent "ftp://$ADDR:2121/up/curl"
    same ftp/large by-curl
    same sent ftp/up/curl
    stop_server
    payload 15000000
    fact "17 MB by lftp, passive and active, and by curl"
}

# The process that has begun the transfer ends; its child completes it, over RDMA by another connection.
case_lftp_background() {
    nginx_server "master_process off"
    client lftp env "HOME=$PWD" lftp -c "set net:limit-rate 1000000; (get http://$ADDR:8080/large -o got &) &&
        !timeout 30 sh -c 'until [ -s got ]; do sleep 0.1; done'"
    ! cmp -s www/large got || fail "the transfer was complete before the first process's end"
    until_true "the transfer is not completed" cmp www/large got
    stop_server
    payload 5000000
    fact "5 MB, completed in the background"
}

# mosquitto: a large retained message, and lines to several subscribers with each quality of service.
case_mosquitto() {
    local i qos pub=(mosquitto_pub -h "$ADDR" -p 1883) sub=(mosquitto_sub -h "$ADDR" -p 1883) waiting=()
    printf '%s\n' "listener 1883 $ADDR" "allow_anonymous true" "user root" "log_type all" >mosquitto.conf
    serve server 1883 mosquitto -c "$PWD/mosquitto.conf"
    random large 2000000
    client retain "${pub[@]}" -t large -q 1 -r -f large
    for i in 1 2; do
        client "large$i" "${sub[@]}" -t large -q 1 -C 1 -N
        same large "large$i.out"
    done
    for ((i = 0; i < 100; i++)); do head -c 1500 /dev/urandom | base64 -w 0 && echo; done >lines
    for qos in 0 1 2; do
        for i in 1 2 3; do
            start_client "sub$qos-$i" "${sub[@]}" -t "lines/$qos" -q "$qos" -C 100
            waiting+=("$started")
        done
    done
    until_true "not 11 subscriptions" grep -qz "$(printf 'Sending SUBACK%.0s.*' {1..11})" server.err
    for qos in 0 1 2; do
        cp lines "pub$qos.in"
        start_client "pub$qos" "${pub[@]}" -t "lines/$qos" -q "$qos" -l
        waiting+=("$started")
    done
    for i in "${waiting[@]}"; do finish "$i" || fail "a client: $(ended $?)"; done
    for qos in 0 1 2; do
        for i in 1 2 3; do same lines "sub$qos-$i.out"; done
    done
    stop_server
    payload 7000000
    fact "a retained message of 2 MB, 100 of 2 KB with QoS 0, 1 and 2 to 3 subscribers each"
}

# aria2: one file in 4 parts, by as many connections at once.
case_aria2() {
    nginx_server "master_process off"
    random www/large 16000000
    client aria2 env "HOME=$PWD" aria2c --no-conf -q -x 4 -s 4 -k 1M --file-allocation=none --log=aria2.log --log-level=info \
        -o got "http://$ADDR:8080/large"
    same www/large got
    [ "$(grep -c 'Connecting to' aria2.log)" -ge 4 ] || fail "fewer than 4 connections: $(grep -c 'Connecting to' aria2.log)"
    stop_server
    payload 16000000
    fact "16 MB in 4 parts at once"
}

# activated LIBRARY LIBRARY: of systemd-socket-activate, and of the server that gets its listener at the first connection.
activated() {
    local by=$1 with=$2 dir=${library[$2]:-} variables=("LD_LIBRARY_PATH=$tools_lib") words=() one
    [ "$with" = plain ] ||
        variables=("LD_LIBRARY_PATH=$dir:$tools_lib" "LD_PRELOAD=$dir/rsocket/librspreload.so" RS_MODE=auto RS_TIMEOUT=10000)
    for one in "${variables[@]}" "PYTHONPATH=$SERVICES/usr/lib/python3/dist-packages:$here/apps" "WWW=$PWD/www"; do
        words+=(-E "$one")
    done
    SERVER_LIB=$by serve "server-$by-$with" 9020 systemd-socket-activate -l "$ADDR:9020" "${words[@]}" \
        "$(command -v python3)" -m uvicorn --fd 3 --loop asyncio --http h11 --log-level warning files_asgi:app
    # The activator becomes the server: a connection by RDMA, made before, would end.
    ! rdma_listens 9020 || fail "systemd-socket-activate listens by RDMA"
    client "curl-$by-$with" curl -sS --fail -o one "http://$ADDR:9020/large"
    same www/large one
    client "more-$by-$with" curl -sS --fail -Z -o 'at-once-#1' "http://$ADDR:9020/large?[1-4]"
    for i in 1 2 3 4; do same www/large "at-once-$i"; done
    stop_server
}
case_socket_activation() {
    pages
    truncate -s 1000000 www/large
    : >stays-tcp
    activated plain "$SERVER_LIB"
    if [ "$SERVER_LIB" != plain ]; then
        activated "$SERVER_LIB" "$SERVER_LIB"
        activated "$SERVER_LIB" plain
    fi
    payload 5000000
    fact "5 files of 1 MB from each server"
}

# stunnel at both ends, in front of nginx; each becomes a daemon after it has begun to listen, so that these listeners are TCP's.
case_stunnel() {
    local name pid
    : >servers-by-rdma
    nginx_server "master_process off"
    echo "name:0123456789abcdef0123456789abcdef" >secret
    for name in server client; do
        printf '%s\n' "pid = $PWD/$name.pid" "output = $PWD/$name.log" "[one]" "ciphers = PSK" "PSKsecrets = $PWD/secret" \
            >"$name.conf"
    done
    printf '%s\n' "accept = $ADDR:4433" "connect = $ADDR:8080" >>server.conf
    printf '%s\n' "client = yes" "accept = $ADDR:8443" "connect = $ADDR:4433" >>client.conf
    CLIENT_LIB=$SERVER_LIB client outer-server stunnel "$PWD/server.conf"
    client outer-client stunnel "$PWD/client.conf"
    client curl1 curl -sS --fail -o one "http://$ADDR:8443/large" -o two "http://$ADDR:8443/small"
    same www/large one
    same www/small two
    client curl2 curl -sS --fail -Z -o 'at-once-#1' "http://$ADDR:8443/large?[1-3]"
    for i in 1 2 3; do same www/large "at-once-$i"; done
    for name in server client; do
        pid=$(<"$name.pid")
        kill -TERM "$pid"
        until_true "stunnel does not end" test ! -e "$name.pid"
    done
    stop_server
    payload 20000000
    fact "20 MB through two tunnels"
}

# A client that connects and then becomes a daemon. Over RDMA the connection ends with its first process (docs/preload.md),
# and both ends get an error. The same command goes by TCP from then on, where nothing is lost.
case_connect_then_fork() {
    local how time report status
    random server.in 2000000
    random sent 1000000
    payload 1
    for how in _exit exit; do
        for time in first second; do
            rm -f "report-$how"
            serve server 7002 socat -d -t 30 - "TCP4-LISTEN:7002,bind=$ADDR,reuseaddr"
            client client python3 "$here/apps/background_client.py" "$ADDR" 7002 sent "received-$how" "report-$how" "$how"
            until_true "the child does not end" test -e "report-$how"
            report=$(<"report-$how") status=0
            finish "$server" || status=$?
            if [ "$report" = "to the end" ] || [ $time = second ] || must_be_tcp; then
                [ "$report, $status" = "to the end, 0" ] || fail "$how, $time: $report, the server: $(ended "$status")"
                same server.in "received-$how"
                same sent server.out
            else
                grep -q 'reset by peer\|Broken pipe' server.err ||
                    fail "$how: $report, and the server takes it for an end in order"
            fi
            fact "$how, $time: $report"
        done
    done
}

# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and guest
# Languages with event loops of their own: Java, Node.js, Go, and uvicorn. See lib.sh for the functions of a case.

# java_case KIND: a server and a client on channels with a selector (epoll), or on blocking sockets.
java_case() {
    local java=("$SERVICES/usr/lib/jvm/java-17-openjdk-amd64/bin/java" -Xmx64m -Xshare:auto -XX:+UseSerialGC -XX:TieredStopAtLevel=1
        -cp "$CLASSES" Peer)
    # Files that links of the package name.
    [ -e /etc/java-17-openjdk ] || cp -a "$SERVICES/etc/java-17-openjdk" /etc/
    serve server 9010 "${java[@]}" server "$1" "$ADDR" 9010
    client client "${java[@]}" client "$1" "$ADDR" 9010
    stop_server
    payload "$(<client.out)"
    fact "$(<client.out) bytes over 6 connections at once"
}
case_java_epoll() { java_case epoll; }
case_java_blocking() { java_case blocking; }

# Node.js closes descriptors by syscall(3).
case_node() {
    full=yes
    [ -e /usr/share/nodejs/acorn ] || cp -an "$SERVICES/usr/share/nodejs" /usr/share/
    serve server 9011 "$SERVICES/usr/bin/node" "$here/apps/peer.js" server "$ADDR" 9011
    client client "$SERVICES/usr/bin/node" "$here/apps/peer.js" client "$ADDR" 9011
    stop_server
    payload "$(<client.out)"
    fact "$(<client.out) bytes over net and http, up to 6 connections at once"
}

# Go makes its system calls itself, and calls the C library for names: it must stay a TCP program, with its peers, too.
case_go() {
    local go=(env GODEBUG=netdns=cgo "HOME=$PWD")
    : >stays-tcp
    pages
    grep -q ' go-server$' /etc/hosts || echo "$ADDR go-server" >>/etc/hosts
    serve server 8085 "${go[@]}" caddy file-server --listen "$ADDR:8085" --root www
    client hey "${go[@]}" hey -n 100 -c 4 http://go-server:8085/small
    [ "$(grep -cE '^ +\[200\]\s+100 responses' hey.out)" = 1 ] || fail "not 100 good answers: $(grep -m 1 responses hey.out)"
    client curl curl -sS --fail -o one "http://$ADDR:8085/small"
    same www/small one
    stop_server
    nginx_server "master_process off"
    client hey2 "${go[@]}" hey -n 100 -c 4 http://go-server:8080/small
    [ "$(grep -cE '^ +\[200\]\s+100 responses' hey2.out)" = 1 ] || fail "not 100 good answers: $(grep -m 1 responses hey2.out)"
    stop_server
    payload 2000000
    fact "hey and curl to caddy, hey to nginx"
}

# uvicorn_case LOOP: by curl, and by Python's urllib over four connections at once.
uvicorn_case() {
    pages
    truncate -s 1000000 www/large
    serve server 8006 env "PYTHONPATH=$SERVICES/usr/lib/python3/dist-packages:$here/apps" "WWW=$PWD/www" \
        python3 -m uvicorn --host "$ADDR" --port 8006 --loop "$1" --http h11 --log-level warning files_asgi:app
    client curl curl -sS --fail -o one "http://$ADDR:8006/large" -o two "http://$ADDR:8006/small"
    same www/large one
    same www/small two
    client client python3 "$here/apps/http_client.py" "http://$ADDR:8006" www
    stop_server
    payload $((1010000 + $(<client.out)))
    fact "$((1010000 + $(<client.out))) bytes by curl and urllib"
}
case_uvicorn() { uvicorn_case asyncio; }
# libuv closes descriptors by syscall(3).
case_uvicorn_uvloop() {
    full=yes
    uvicorn_case uvloop
}

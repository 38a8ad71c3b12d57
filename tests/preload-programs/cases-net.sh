# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and guest
# Programs that measure or copy data streams. See lib.sh for the functions of a case.

# The receiver stops counting when the sender has finished: some data is still in transit then, over TCP as well.
iperf3_direction() {
    local sent received
    serve server 5201 iperf3 -s -B "$ADDR" -p 5201 -1
    client client iperf3 -c "$ADDR" -p 5201 -n 20M -J "$@"
    finish_server server
    sent=$(sum_of sum_sent)
    received=$(sum_of sum_received)
    [ "${sent:-0}" -ge 20971520 ] || fail "sent ${sent:-nothing} of 20971520 bytes: $(last_words client)"
    if [ "${received:-0}" = 0 ] || [ "$received" -gt "$sent" ]; then fail "received ${received:-nothing} of $sent bytes"; fi
    payload "$received"
    fact "$((sent / 1048576)) MB sent, $((received / 1024)) KB received when it ended"
}
sum_of() { awk -v name="\"$1\"" 'index($0, name) { on = 1 } on && /"bytes"/ { gsub(/[^0-9]/, ""); print; exit }' client.out; }
case_iperf3() { iperf3_direction; }
case_iperf3_reverse() { iperf3_direction -R; }
case_iperf3_parallel() { iperf3_direction -P 4; }

# The server's own count must be the client's.
case_iperf() {
    local sent received
    serve server 5001 iperf -s -B "$ADDR" -p 5001 -P 1 -y C
    client client iperf -c "$ADDR" -p 5001 -n 20M -y C
    finish_server server
    sent=$(awk -F, 'END { print $8 }' client.out)
    received=$(awk -F, 'END { print $8 }' server.out)
    [ "${sent:-0}" -ge 20971520 ] || fail "sent ${sent:-nothing}"
    [ "$received" = "$sent" ] || fail "sent $sent, received ${received:-nothing}"
    payload "$sent"
    fact "$((sent / 1048576)) MB"
}

# qperf's server serves each client in a separate process.
qperf_test() {
    extra_env=(RDMAV_FORK_SAFE=1)
    serve server 19765 qperf -lp 19765
    client client qperf "$ADDR" -lp 19765 -ip 19766 -t 2 "$1"
    stop_server
    grep -qE "$2 += +[0-9.]+ " client.out || fail "no result: $(last_words client)"
    fact "$(sed -n -E "s/^ +$2 += +/$2 /p" client.out)"
}
case_qperf_bw() {
    qperf_test tcp_bw bw
    # Two seconds at that rate; at least half of the data must have been transferred by the device.
    payload "$(awk '/bw +=/ { f["KB/sec"] = 1e3; f["MB/sec"] = 1e6; f["GB/sec"] = 1e9; printf "%d", $3 * f[$4] }' client.out)"
}
case_qperf_lat() {
    qperf_test tcp_lat latency
    payload 100
}

# With --data-integrity the client compares each answer with its request.
case_sockperf() {
    local count
    serve server 11111 sockperf server --tcp -i "$ADDR" -p 11111
    client client sockperf ping-pong --tcp -i "$ADDR" -p 11111 -t 2 -m 1000 --data-integrity
    stop_server
    count=$(sed -n -E 's/.*\[Valid Duration\].*ReceivedMessages=([0-9]+).*/\1/p' client.out)
    [ "${count:-0}" -gt 0 ] || fail "no message came back: $(last_words client)"
    grep -qE 'dropped messages = 0;.*duplicated messages = 0;.*out-of-order messages = 0' client.out ||
        fail "messages lost or out of order: $(grep -m 1 dropped client.out)"
    ! grep -qi 'data integrity test failed' client.out client.err || fail "contents differ"
    payload $((count * 2000))
    fact "$count messages of 1000 bytes and back"
}

# nc_case BYTES-OF-SERVER BYTES-OF-CLIENT: both send simultaneously; the server half-closes while the client may still
# send. The client's input ends only after it has received everything: a listening nc exits when its peer half-closes,
# over TCP too.
nc_case() {
    random server.in "$1"
    random client.data "$2"
    mkfifo client.in
    (
        cat client.data
        until [ "$(stat -c %s client.out 2>/dev/null || echo 0)" -ge "$1" ]; do read -rt 0.1 -u "$silence"; done
    ) >client.in &
    # Its listeners have SO_REUSEPORT.
    : >stays-tcp
    serve server 7001 nc.openbsd -N -l "$ADDR" 7001
    client client nc.openbsd -N "$ADDR" 7001
    finish_server server
    same server.in client.out
    same client.data server.out
    payload $(($1 + $2))
    fact "$1 bytes and $2 back"
}
case_nc() { nc_case 5000000 3000000; }
# The server sends nothing: it half-closes before the first byte arrives.
case_nc_half_close() { nc_case 0 2000000; }

# socat_case BYTES-OF-SERVER BYTES-OF-CLIENT
socat_case() {
    random server.in "$1"
    random client.in "$2"
    serve server 7002 socat -t 30 - "TCP4-LISTEN:7002,bind=$ADDR,reuseaddr"
    client client socat -t 30 - "TCP4:$ADDR:7002"
    finish_server server
    same server.in client.out
    same client.in server.out
    payload $(($1 + $2))
    fact "$1 bytes and $2 back"
}
case_socat() { socat_case 3000000 1000000; }
# The client sends nothing: its half-close arrives before the first byte.
case_socat_half_close() { socat_case 2000000 0; }

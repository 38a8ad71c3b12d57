# shellcheck shell=bash
# The cases of tests/rsockets: which program runs how. See ../programs/case-list.sh; PEER is rsockets_peer, MEGABYTES the size of
# the file that rcopy copies.

case_groups_all=(rstream riostream rcopy peer udpong)

# both PROGRAM NAME EXPECT OPTIONS...: the same options at both ends.
both() {
    local program=$1 name=$2 expect=$3
    shift 3
    add "$program-$name" listen 1 "$program -b $ADDR $*" "$program -s $ADDR $*" "$expect"
}

# In the asynchronous mode the client's exit status is the length of its last message, 16.
# -T f is left out: with it rstream uses the kernel's sockets.
cases_rstream() {
    local size few="-I 5 -C 4"
    both rstream blocking 0 "-T b -S 1000 $few"
    both rstream nonblocking 0 "-T n -S 1000 $few"
    both rstream default 0 "-S 1000 $few"
    both rstream async 16 "-T a -S 1000 $few"
    both rstream async-65536 16 "-T a -S 65536 $few"
    both rstream resolve 0 "-T r -T b -S 1000 $few"
    both rstream keepalive 0 "-k 1 -T b -S 1000 $few"
    both rstream small-buffers 0 "-B 4096 -T b -S 100000 $few"
    both rstream no-inline 0 "-i 0 -T b -S 64 $few"
    both rstream inline-200 0 "-i 200 -T b -S 200 $few"
    for size in 1 64 65 2048 2049 4096 65536 1048576; do
        both rstream "verify-$size" 0 "-T b -T v -S $size $few"
    done
    both rstream verify-nonblocking-65536 0 "-T n -T v -S 65536 $few"
    both rstream verify-4194304 0 "-T b -T v -S 4194304 -I 2 -C 2"
    both rstream many 0 "-T b -T v -S 64 -I 500 -C 10"
    add rstream-ipv6 listen 1 "rstream -b $ADDR6 -T b -T v -S 5000 $few" \
        "rstream -s $ADDR6 -T b -T v -S 5000 $few"
    add rstream-any listen 1 "rstream -T b -T v -S 5000 $few" \
        "rstream -s $ADDR -T b -T v -S 5000 $few"
}

cases_riostream() {
    local size few="-I 5 -C 4"
    both riostream default 0 "-S 1000 $few"
    both riostream blocking 0 "-T b -S 1000 $few"
    both riostream nonblocking 0 "-T n -S 1000 $few"
    both riostream async 0 "-T a -S 1000 $few"
    for size in 1 64 65 4096 65536 1048576; do
        both riostream "verify-$size" 0 "-T b -T v -S $size $few"
    done
}

cases_rcopy() {
    add rcopy persistent 1 "rcopy" "rcopy original $ADDR:/tmp/copy"
}

# Creating the large file may take a while on a busy machine.
before_rcopy() {
    hang_limit=300
    head -c "${MEGABYTES}M" /dev/urandom >/tmp/original
}

prepare_rcopy() {
    ln -s /tmp/original original
}

finish_rcopy() {
    cmp /tmp/original /tmp/copy >>client1.out 2>&1 || echo differs >client1.status
    rm -f /tmp/copy original
}

# Datagrams. Only InfiniBand, where the reference's work; on RoCE they do not, and iWARP has none. The server's UDP socket
# is all that can be waited for, and the client sends again what is not answered.
cases_udpong() {
    local size mode
    for size in 64 1000 2000; do
        add "udpong-$size" udp:7475 1 "udpong -b $ADDR -p 7475" "udpong -s $ADDR -p 7475 -S $size -C 100"
    done
    for mode in b n a; do
        add "udpong-mode-$mode" udp:7475 1 "udpong -b $ADDR -p 7475 -T $mode" "udpong -s $ADDR -p 7475 -T $mode -S 500 -C 100"
    done
    add udpong-echo udp:7475 1 "udpong -b $ADDR -p 7475 -T e" "udpong -s $ADDR -p 7475 -T e -S 500 -C 100"
    add udpong-ipv6 udp:7475 1 "udpong -b $ADDR6 -p 7475" "udpong -s $ADDR6 -p 7475 -S 500 -C 100"
}

# Different sizes on the two ends; the smallest are supported by all devices.
cases_peer() {
    local test smallest="PEER_SQ=16 PEER_RQ=16 PEER_INLINE=0 PEER_RCVBUF=1024 PEER_SNDBUF=1024"
    # siw supports at most 80 bytes inline, the virtual adapters 64.
    local inline=200
    case ${device:-} in
    siw) inline=80 ;;
    ib) inline=64 ;;
    esac
    local large="PEER_SQ=1000 PEER_RQ=1000 PEER_INLINE=$inline PEER_RCVBUF=1000000 PEER_SNDBUF=1000000"
    local less="PEER_TOTAL=200000"
    for test in stream client-first server-first iomap keepalive parallel; do
        peer "$test" "" "" "$test"
    done
    peer ipv6 "" "" stream "$ADDR6"
    for test in stream client-first server-first iomap; do
        peer "$test-smallest-both" "$less $smallest" "$less $smallest" "$test"
        peer "$test-smallest-server" "$less $smallest" "$less" "$test"
        peer "$test-smallest-client" "$less" "$less $smallest" "$test"
        peer "$test-large-server" "$less $large" "$less $smallest" "$test"
        peer "$test-large-client" "$less $smallest" "$less $large" "$test"
    done
    peer large-both "$large" "$large" stream
    peer parallel-smallest-client "" "$smallest" parallel
}

# peer NAME SERVER-SIZES CLIENT-SIZES TEST [ADDRESS]
peer() {
    local address=${5:-$ADDR}
    add "peer-$1" listen 1 "env $2 $PEER server $address $4" "env $3 $PEER client $address $4"
}

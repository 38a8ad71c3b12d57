# shellcheck shell=bash
# The cases of tests/programs: which program of rdmacm-utils runs how. See case-list.sh.

case_groups_all=(rping ucmatose datagram endpoint cmtime)

# -S 23 is the smallest size that rping accepts, 65535 the largest.
cases_rping() {
    local size
    add rping listen 1 "rping -s -a $ADDR -C 10" "rping -c -a $ADDR -C 10 -v"
    add rping-ipv6 listen 1 "rping -s -a $ADDR6 -C 10 -v" "rping -c -a $ADDR6 -C 10 -v"
    add rping-any listen 1 "rping -s -C 10" "rping -c -a $ADDR -I $OWN -C 10 -v"
    add rping-any-ipv6 listen 1 "rping -s -a ::0 -C 10" "rping -c -a $ADDR6 -I $OWN6 -C 10 -v"
    for size in 23 64 4096 65535; do
        add "rping-verify-$size" listen 1 "rping -s -a $ADDR -C 100 -V -S $size" \
            "rping -c -a $ADDR -C 100 -V -S $size"
    done
    add rping-ipv6-verify-4096 listen 1 "rping -s -a $ADDR6 -C 100 -V -S 4096" \
        "rping -c -a $ADDR6 -C 100 -V -S 4096"
    add rping-own-qp listen 1 "rping -s -a $ADDR -C 10 -q -V" "rping -c -a $ADDR -C 10 -q -V"
    add rping-persistent-4 persistent 4 "rping -s -P -a $ADDR -V -S 1000" \
        "rping -c -a $ADDR -C 300 -V -S 1000"
    add rping-persistent-4-ipv6 persistent 4 "rping -s -P -a $ADDR6 -V -S 1000" \
        "rping -c -a $ADDR6 -C 300 -V -S 1000"
}

cases_ucmatose() {
    local n
    for n in 1 10 30 100; do
        add "ucmatose-$n" listen 1 "ucmatose -c $n" "ucmatose -s $ADDR -c $n"
    done
    for n in 1 10; do
        add "ucmatose-migrate-$n" listen 1 "ucmatose -m -c $n" "ucmatose -m -s $ADDR -c $n"
    done
    add ucmatose-migrate-client listen 1 "ucmatose" "ucmatose -m -s $ADDR"
    add ucmatose-ipv6 listen 1 "ucmatose -b ::0" "ucmatose -s $ADDR6"
    add ucmatose-bound listen 1 "ucmatose -b $ADDR" "ucmatose -b $OWN -s $ADDR"
    for n in 0 1 1000; do
        add "ucmatose-messages-$n" listen 1 "ucmatose -C $n" "ucmatose -s $ADDR -C $n"
    done
    for n in 1 4096 1000000; do
        add "ucmatose-size-$n" listen 1 "ucmatose -S $n" "ucmatose -s $ADDR -S $n"
    done
    add ucmatose-tos listen 1 "ucmatose -t 8" "ucmatose -s $ADDR -t 8"
    add ucmatose-ack-timeout listen 1 "ucmatose -a 14" "ucmatose -s $ADDR -a 14"
}

# udaddy's messages have no checksum; udaddy hangs if a message does not arrive.
# mckey's -M needs a mapped address, which RoCE of Linux 6.1 rejects; the error is compared.
cases_datagram() {
    local group4=239.1.2.3 mac=3333ef010203
    add udaddy listen 1 "udaddy" "udaddy -s $ADDR"
    add udaddy-10 listen 1 "udaddy -c 10" "udaddy -s $ADDR -c 10"
    add udaddy-ipv6 listen 1 "udaddy -b ::0" "udaddy -s $ADDR6"
    add udaddy-bound listen 1 "udaddy -b $ADDR" "udaddy -b $OWN -s $ADDR"
    add udaddy-messages-100 listen 1 "udaddy -C 100" "udaddy -s $ADDR -C 100"
    add udaddy-size-1000 listen 1 "udaddy -S 1000" "udaddy -s $ADDR -S 1000"
    add mckey "mcast:$mac" 1 "mckey -m $group4 -b $ADDR" "mckey -m $group4 -b $OWN -s"
    add mckey-4 "mcast:$mac" 1 "mckey -m $group4 -b $ADDR -c 4" "mckey -m $group4 -b $OWN -s -c 4"
    add mckey-send-only "mcast:$mac" 1 "mckey -m $group4 -b $ADDR" "mckey -m $group4 -b $OWN -s -o"
    add mckey-ipv6 mcast:333300020003 1 "mckey -m ff0e::2:3 -b $ADDR6" \
        "mckey -m ff0e::2:3 -b $OWN6 -s"
    add mckey-unmapped "mcast:$mac" 1 "mckey -M ff0e::ffff:ef01:203 -b $ADDR" \
        "mckey -M ff0e::ffff:ef01:203 -b $OWN -s"
}

# Synchronous ids created by rdma_create_ep with rdma_getaddrinfo's result.
cases_endpoint() {
    add rdma_client listen 1 "rdma_server" "rdma_client -s $ADDR"
    add rdma_client-bound listen 1 "rdma_server -s $ADDR -p 7555" "rdma_client -s $ADDR -p 7555"
    add rdma_client-ipv6 listen 1 "rdma_server -s $ADDR6" "rdma_client -s $ADDR6"
    add rdma_xclient-rc listen 1 "rdma_xserver -c r" "rdma_xclient -c r -s $ADDR"
    add rdma_xclient-xrc listen 1 "rdma_xserver -c x" "rdma_xclient -c x -s $ADDR"
}

# cmtime's server of 44.0 serves one client. The ends of 65.0 synchronise over TCP, and make as many connections
# again with arbitrary QP numbers, which must differ between the two ends on one host.
cases_cmtime() {
    local n
    for n in 10 1000; do
        if [ "$REFERENCE" = 44.0 ]; then
            add "cmtime-$n" persistent 1 "cmtime -b $ADDR -c $n" "cmtime -s $ADDR -c $n"
        else
            add "cmtime-$n" tcp:7471 1 "cmtime -b $ADDR -C $ADDR -L -c $n -q 200000" \
                "cmtime -b $OWN -C $ADDR -c $n -q 100000"
        fi
    done
}

# shellcheck shell=bash
# shellcheck disable=SC2154,SC2034 # shared with auto-guest
# Cases of automatic mode, for auto-guest: what a program observes is compared with what it observes without the library
# (auto_compare.py, auto_states.py). Each returns a status, and `facts`.

# compare CASE [KIND [PROGRAM]]: runs the program plain and in automatic mode. The log of the second run is client.log.
compare() {
    local program=$here/${3:-auto_compare.py}
    rm -f "$work"/server* "$work"/client*
    port=$((port + 10))
    timeout 100 "$python" "$program" "$1" "$ADDR" "$ADDR6" "${silent:-}" "$port" >"$work/client.plain" 2>&1 || return 1
    port=$((port + 10))
    with "${2:-auto}" "$work/client.log" timeout 100 "$python" "$program" "$1" "$ADDR" "$ADDR6" "${silent:-}" "$port" \
        >"$work/client.auto" 2>&1
    port=$((port + 10))
    facts="$(grep -c 'connect: .*: RDMA: ' "$work/client.log") connections by RDMA, $(grep -c 'connect: .*: TCP: ' "$work/client.log") by TCP"
    diff "$work/client.plain" "$work/client.auto" >"$work/client.diff"
}

# Listeners with SO_REUSEPORT are TCP's from the start, or from the moment when they get the option.
case_reuse_port() {
    compare reuse_port && [ "$facts" = "1 connections by RDMA, 63 by TCP" ] &&
        [ "$(grep -c 'listen: .* TCP: SO_REUSEPORT: other sockets may listen at the port' "$work/client.log")" = 4 ]
}

case_reuse_port_of_processes() { compare reuse_port_of_processes && [ "$facts" = "0 connections by RDMA, 52 by TCP" ]; }

# A client that sends at once is served, whenever the option was set and whichever process accepts.
case_defer_accept() { compare defer_accept && [ "$facts" = "7 connections by RDMA, 9 by TCP" ]; }
# Places for connections are found by the ports of their tokens.
case_few_ports() { compare few_ports && [ "$facts" = "32 connections by RDMA, 0 by TCP" ]; }
case_accept_order() { compare accept_order && [ "$facts" = "16 connections by RDMA, 16 by TCP" ]; }

# An instance of io_uring: data that goes past the library must arrive.
case_ring() {
    compare ring || { facts=$(tail -n 1 "$work/client.plain") && [ "$facts" != 'no io_uring' ] || return 77; }
    [ "$facts" = "0 connections by RDMA, 2 by TCP" ]
}
# What is sent past the library to the socket of a connection by RDMA.
case_direct_calls() { compare direct_calls && [ "$facts" = "1 connections by RDMA, 0 by TCP" ]; }
# A child of clone(2), made by a system call.
case_raw_clone() { compare raw_clone full && [ "$facts" = "2 connections by RDMA, 0 by TCP" ]; }
case_as_tcp() { compare as_tcp && [ "$facts" = "6 connections by RDMA, 0 by TCP" ]; }
# A listener whose process has changed its root folder and its user: the first client waits for nothing, the others not.
case_chroot() {
    processes chroot 4 || return 1
    timeout=1000 several 3 auto "$ADDR" && several 1 plain "$ADDR" && until_lines 4 '^echoed 100000$' || return 1
    # The server cannot write the log any more.
    facts=$(grep -o 'nobody listens there (.*)' "$work/client.log" | sort | uniq -c)
    [[ $facts = *2*'no such service id'* ]]
}
# What one process has learned of a host, another one of the same user knows.
case_silent_host_of_another_process() {
    local silent timeout=300
    silent_neighbour || return
    for _ in 1 2; do
        with auto "$work/client.log" timeout 20 "$python" -c '
import socket, sys
socket.setdefaulttimeout(1)
socket.socket().connect_ex((sys.argv[1], 7))' "$silent"
    done
    facts="$(sed -n 's/.*: TCP: //p' "$work/client.log" | paste -sd,)"
    [ "$facts" = "no answer by RDMA in time,the host did not answer by RDMA a short time ago" ]
}

# The parent of a program that uses its connection goes on with it by epoll.
case_epoll_and_programs() { compare epoll_and_programs full && [ "$facts" = "4 connections by RDMA, 0 by TCP" ]; }
case_epoll_and_kept_connection() { compare epoll_and_kept_connection full && [ "$facts" = "1 connections by RDMA, 0 by TCP" ]; }

# As many connections as by TCP, whatever the limits: the library's numbers are above the program's, or it takes few.
# The last one finds no two free numbers for a moment, if the program had an odd number of descriptors before.
case_few_descriptors() { compare few_descriptors && [[ $facts == [67]?" connections by RDMA, "[01]" by TCP" ]]; }
case_served_when_full() { compare served_when_full && [[ $facts != 0* && $facts != *" 0 by TCP" ]]; }
case_listener_made_when_full() {
    compare listener_made_when_full || return
    grep "listen: .* port $((port - 9)): " "$work/client.log" >"$work/listener"
    facts="$facts; $(sed 's/.*: //' "$work/listener" | paste -sd,)"
    [[ $facts == *"; "*",RDMA and TCP" ]]
}
case_descriptors_at_the_limit() { compare descriptors_at_the_limit && [[ $facts != 0* ]]; }
case_descriptors_of_a_small_process() { compare descriptors_of_a_small_process; }

case_many_listeners() { compare many_listeners && [ "$facts" = "64 connections by RDMA, 2 by TCP" ]; }
case_many_attempts() {
    local silent
    silent_neighbour || return
    compare many_attempts && [ "$(grep -c 'TCP: too many attempts at a time, or no memory' "$work/client.log")" = 4 ]
}
# Other files under the socket's number, which copies keep in the instance.
case_stale_members() { compare stale_members && [ "$facts" = "2 connections by RDMA, 0 by TCP" ]; }

case_waits_and_programs() { compare waits_and_programs full && [ "$facts" = "12 connections by RDMA, 0 by TCP" ]; }

# Programs that are executed, or not, beside connections, and what the parent does to their numbers afterwards.
case_popen_with_many() { compare popen_with_many full && [ "$facts" = "40 connections by RDMA, 0 by TCP" ]; }
case_programs_of_threads() { compare programs_of_threads full && [ "$facts" = "40 connections by RDMA, 0 by TCP" ]; }
case_failed_programs() { compare failed_programs full && [ "$facts" = "1 connections by RDMA, 0 by TCP" ]; }
case_resets() { compare resets full && [ "$facts" = "3 connections by RDMA, 0 by TCP" ]; }
case_numbers_of_forwarded() { compare numbers_of_forwarded full && [ "$facts" = "8 connections by RDMA, 0 by TCP" ]; }
case_programs_of_several_children() { compare programs_of_children full && [ "$facts" = "2 connections by RDMA, 0 by TCP" ]; }

# Wildcard listeners with both values, and two of both families at a port: a client of IPv4 is refused by one of the former.
case_v6only() { compare v6only && [ "$facts" = "5 connections by RDMA, 7 by TCP" ]; }

# A socket is bound to an address that this host does not have yet: it is TCP's, and nothing is remembered of others.
case_foreign_address() {
    compare foreign_address && [ "$facts" = "6 connections by RDMA, 18 by TCP" ] &&
        [ "$(grep -c 'listen: .* TCP: no RDMA device that can share ports with TCP has the local address' "$work/client.log")" -ge 6 ] &&
        ! grep -q 'another rsocket has the port' "$work/client.log"
}

# Sets `silent` to a neighbour that takes all packets and never answers. Not with InfiniBand: a hardware address of Ethernet.
silent_neighbour() {
    silent=${ADDR%.*}.222
    [ "$device" = rxe ] || { facts='a hardware address of Ethernet' && return 77; }
    ip neigh replace "$silent" lladdr 02:00:00:00:02:22 nud permanent dev "$(ip -o route get "$silent" | sed -n 's/.* dev \([^ ]*\).*/\1/p')"
}

# Calls in states in which they are seldom made.
case_disconnect() {
    local silent
    silent_neighbour || return
    compare disconnect auto auto_states.py && [ "$facts" = "3 connections by RDMA, 8 by TCP" ]
}
case_calls_in_states() {
    local silent
    silent_neighbour || return
    compare calls_in_states auto auto_states.py && [ "$facts" = "2 connections by RDMA, 7 by TCP" ]
}
case_families() { compare families auto auto_states.py && [ "$facts" = "3 connections by RDMA, 3 by TCP" ]; }
case_ports() { compare ports auto auto_states.py && [ "$facts" = "6 connections by RDMA, 10 by TCP" ]; }
case_options() { compare options auto auto_states.py && [[ $facts = [34]" connections by RDMA, "* ]]; }
case_device() { compare device auto auto_states.py && [ "$facts" = "1 connections by RDMA, 3 by TCP" ]; }
# A child shuts the listener down: the parent notices it when the first client comes by RDMA, which is reset.
case_shut_down_by_child() {
    compare shut_down_by_child auto auto_states.py
    diff "$work/client.plain" "$work/client.auto" | grep '^[<>]' >"$work/client.diff"
    # The first client is reset, before its connect(2) has returned or afterwards.
    case "$facts" in
    "0 connections by RDMA, 6 by TCP") [ ! -s "$work/client.diff" ] ;;
    "1 connections by RDMA, 5 by TCP")
        grep -qx '> first \(reset\)\?' "$work/client.diff" && [ "$(grep -c . "$work/client.diff")" = 2 ]
        ;;
    *) return 1 ;;
    esac
}
case_bound_before() {
    compare bound_before auto auto_states.py && [ "$facts" = "0 connections by RDMA, 32 by TCP" ] &&
        [ "$(grep -c 'listen: .* TCP: the socket is a copy, or was made by another process or before a fork' "$work/client.log")" = 4 ]
}

# A neighbour that never answers: the attempt by RDMA takes no longer than SO_SNDTIMEO, and then nothing
# is remembered of the host; TCP has the rest of the time.
case_send_timeout() {
    local silent timeout
    silent_neighbour || return
    timeout=60000
    compare send_timeout && [ "$(grep -c 'TCP: no answer by RDMA in time' "$work/client.log")" = 2 ] || return 1
    timeout=100
    compare send_timeout || return 1
    facts="$(sed -n 's/.*: TCP: //p' "$work/client.log" | paste -sd,)"
    [ "$facts" = "no answer by RDMA in time,the host did not answer by RDMA a short time ago" ]
}

# shellcheck shell=bash
# The cases of tests/faults, run in the lab by `guest`. The server's device and address are SERVER_DEV and
# SERVER_ADDR at the far end of the link FAR, the client's are CLIENT_DEV and CLIENT_ADDR behind NEAR.
# PORT differs from case to case. `proc NAME STEP...` starts tests/faults/steps with the given steps,
# `program NAME COMMAND...` another program; both run the library under test.
# shellcheck disable=SC2154,SC2046,SC2034 # variables of guest and run; steps are split on purpose

# Steps that most cases share.
listen_steps() { echo "id bind:$SERVER_ADDR:$PORT listen:${1:-5}"; }
resolve_steps() { echo "id addr:$SERVER_ADDR:$PORT event route event"; }
connect_steps() { echo "$(resolve_steps) qp recv:8 connect event"; }
accept_steps() { echo "event qp recv:8 accept event"; }

# ---- no listener, full backlog --------------------------------------------------------------

# (siw connects inside rdma_connect, which fails; rxe answers with an event.)
case_not_listening() {
    proc client $(resolve_steps) qp connect answer destroy
    finish
}

case_not_listening_sync() {
    proc client sync addr:"$SERVER_ADDR:$PORT" route qp connect destroy
    finish
}

# rping of 44.0 hangs on siw if rdma_connect itself fails, so it is not run there.
case_not_listening_programs() {
    program ucmatose ucmatose -s "$SERVER_ADDR" -c 2 -p "$PORT"
    finish
    program rdma_client rdma_client -s "$SERVER_ADDR" -p "$PORT"
    finish
    [ "$DEVICE" = siw ] || program rping rping -c -a "$SERVER_ADDR" -p "$PORT" -C 1
    finish
}

# A listener with a backlog of 1 that reads no events: the kernel drops the second request, and on
# InfiniBand transport its sender gets no answer. After the first request has been read there is
# space again.
case_backlog() {
    fifos listening first refused again
    proc server $(listen_steps 1) tell:listening arrived tell:first hear:refused \
        event qp accept event tell:again event qp accept event \
        event use:1 disconnect destroy event use:2 disconnect destroy use:0 destroy
    hear listening
    proc client $(resolve_steps) $(resolve_steps) $(resolve_steps) \
        use:0 qp connect hear:first use:1 qp connect event \
        tell:refused event hear:again use:2 qp connect event \
        use:0 disconnect event use:2 disconnect event use:0 destroy use:1 destroy use:2 destroy
    finish
}

# ---- kill -9 in each phase ------------------------------------------------------------------

case_killed_resolved() {
    fifos listening reached
    proc server $(listen_steps) tell:listening $(accept_steps) event use:1 disconnect destroy use:0 destroy
    hear listening
    proc client1 $(resolve_steps) qp tell:reached stop
    hear reached
    kill_proc client1
    proc client2 $(connect_steps) disconnect event destroy
    finish
}

# The client is killed between its request and the answer. The listener must still serve others. The
# kernel has no event for the server's id before it is accepted. The next request passes through the
# same queues, so the kernel has processed the disconnection when it arrives.
case_killed_connecting() {
    fifos listening reached asked
    proc server $(listen_steps) tell:listening event qp tell:reached arrived \
        accept destroy $(accept_steps) event use:2 disconnect destroy use:0 destroy
    hear listening
    proc client1 $(resolve_steps) qp connect tell:asked stop
    hear asked
    hear reached
    kill_proc client1
    proc client2 $(connect_steps) disconnect event destroy
    finish
}

case_killed_before_accept() {
    fifos listening reached
    proc server $(listen_steps) tell:listening event qp tell:reached stop
    hear listening
    proc client $(resolve_steps) qp connect event disconnect destroy
    hear reached
    kill_proc server
    finish
}

# The listener is killed with an unread request.
case_killed_listening() {
    fifos listening reached
    proc server $(listen_steps) tell:listening arrived tell:reached stop
    hear listening
    proc client $(resolve_steps) qp connect event destroy
    hear reached
    kill_proc server
    finish
}

case_killed_idle_client() {
    fifos listening reached
    proc server $(listen_steps) tell:listening $(accept_steps) event use:1 disconnect got:1 destroy use:0 destroy
    hear listening
    proc client $(connect_steps) tell:reached stop
    hear reached
    kill_proc client
    finish
}

case_killed_idle_server() {
    fifos listening reached
    proc server $(listen_steps) tell:listening $(accept_steps) tell:reached stop
    hear listening
    proc client $(connect_steps) event disconnect got:1 destroy
    hear reached
    kill_proc server
    finish
}

# iWARP ends a connection if more messages are sent than there are receives, and TCP retries on a dead
# link for a quarter of an hour.
lacks_flow_control() {
    [ "$DEVICE" = siw ] && unsuited "more messages than receives end an iWARP connection"
}

case_killed_traffic_client() {
    lacks_flow_control && return
    fifos listening reached killed
    proc server $(listen_steps) tell:listening event qp recv:16 accept event got:100 tell:reached hear:killed \
        event use:1 disconnect destroy use:0 destroy
    hear listening
    proc client $(connect_steps) flood
    hear reached
    kill_proc client
    tell killed
    finish
}

case_killed_traffic_server() {
    lacks_flow_control && return
    fifos listening reached
    proc server $(listen_steps) tell:listening event qp recv:16 accept event got:100 tell:reached got:100000000
    hear listening
    proc client $(resolve_steps) ack-timeout:10 qp connect event flood event disconnect drain destroy
    hear reached
    kill_proc server
    finish
}

# The client is killed right after rdma_disconnect.
case_killed_disconnecting_client() {
    fifos listening reached
    proc server $(listen_steps) tell:listening $(accept_steps) event use:1 disconnect destroy use:0 destroy
    hear listening
    proc client $(connect_steps) disconnect tell:reached stop
    hear reached
    kill_proc client
    finish
}

# The server is killed when it has read the disconnection and not answered it yet.
case_killed_disconnected_server() {
    fifos listening reached killed
    proc server $(listen_steps) tell:listening $(accept_steps) event tell:reached stop
    hear listening
    proc client $(connect_steps) disconnect hear:killed event destroy
    hear reached
    kill_proc server
    tell killed
    finish
}

# A persistent server must serve the next client. Without -P the results cannot be compared: rping waits
# for a completion that the killed peer may or may not cause, so it hangs sometimes, on each device and
# with each library.
case_killed_rping() {
    program server rping -s -P -a "$SERVER_ADDR" -p "$PORT" -V -S 1000
    await_listener rping
    program client1 rping -c -a "$SERVER_ADDR" -p "$PORT" -v -V -S 1000
    await test -s client1.out # some pings have been exchanged
    kill_proc client1
    : >client1.out
    program client2 rping -c -a "$SERVER_ADDR" -p "$PORT" -C 10 -V -S 1000
    wait_proc client2
    forget server
}

# ---- limits ---------------------------------------------------------------------------------

# With N more descriptors available: which call fails, and how. (The case ends there: the reference
# crashes in calls on an id whose device it could not open.)
case_files() {
    local n
    fifos listening ended
    proc server $(listen_steps) tell:listening hear:ended destroy
    hear listening
    for n in 0 1 2 3 4 5 6 7 8 9 10; do
        proc "limit$n" strict files:"$n" $(resolve_steps) qp destroy
        wait_proc "limit$n"
    done
    tell ended
    finish
}

case_files_sync() {
    local n
    fifos listening ended
    proc server $(listen_steps) tell:listening hear:ended destroy
    hear listening
    for n in 0 1 2 3 4 5 6 7 8 9 10; do
        proc "limit$n" strict files:"$n" sync addr:"$SERVER_ADDR:$PORT" route qp destroy
        wait_proc "limit$n"
    done
    tell ended
    finish
}

# Descriptors run out after the first id: a failure of the second id must not affect the first.
case_files_later() {
    fifos listening
    proc server $(listen_steps) tell:listening $(accept_steps) event use:1 disconnect destroy use:0 destroy
    hear listening
    proc client $(resolve_steps) qp recv:8 files:0 sync id addr:"$SERVER_ADDR:$PORT" event route event qp \
        use:0 connect event disconnect event use:1 destroy use:0 destroy
    finish
}

# Without CAP_IPC_LOCK; the buffer needs nine pages.
case_memlock() {
    local n
    fifos listening ended
    chmod 666 /dev/infiniband/*
    proc server $(listen_steps) tell:listening hear:ended destroy
    hear listening
    for n in 0 4096 1048576; do
        proc "limit$n" memlock:"$n" $(resolve_steps) qp destroy
        wait_proc "limit$n"
    done
    tell ended
    finish
}

# ---- the network ----------------------------------------------------------------------------

# The lost packets differ from run to run, so only the result is compared: all data is correct.
# The exit of rping's server is not compared: its client exits without waiting for the answer to its
# disconnect request, and if that packet is lost the server does not see the disconnection.
# rping waits about a second for each lost packet, so the cases with high loss send few pings.
# With the ACK time-out of 134 ms (15) seven retries take about a second. With a shorter one a busy machine ends a
# connection (RETRY_EXC), and the ucmatose at the other end polls its CQ forever, with either library.
# On siw:
# - no ucmatose: connecting sometimes fails (CONNECT_ERROR -22, seen with the reference) and its server
#   hangs, probably because that server sends first, which iWARP does not allow;
# - the link loses no packets during the disconnection: it is one TCP reset, which is not repeated;
# - no more messages than there are receives: see lacks_flow_control.
lossy() {
    local pings=$1 messages=16
    shift
    quality "$@"
    program rping-server rping -s -a "$SERVER_ADDR" -p "$PORT" -C "$pings" -V -S 1000
    await_listener rping
    program rping-client rping -c -a "$SERVER_ADDR" -p "$PORT" -C "$pings" -V -S 1000
    wait_proc rping-client
    forget rping-server
    if [ "$DEVICE" != siw ]; then
        messages=100
        program ucmatose-server ucmatose -b "$SERVER_ADDR" -p "$PORT" -a 15 -c 5 -C 50 -S 2000
        await_listener ucmatose
        program ucmatose-client ucmatose -s "$SERVER_ADDR" -p "$PORT" -a 15 -c 5 -C 50 -S 2000
        finish
    fi
    fifos listening received go
    proc server $(listen_steps) tell:listening event qp recv:16 accept event "got:$messages" tell:received event \
        use:1 disconnect destroy use:0 destroy
    hear listening
    proc client $(resolve_steps) ack-timeout:15 qp connect event "send:$messages" hear:go disconnect event destroy
    hear received
    [ "$DEVICE" != siw ] || quality
    tell go
    finish
    quality
}
case_loss_1() { lossy 100 loss 1%; }
case_loss_10() { lossy 10 loss 10%; }
case_delay_50() { lossy 20 delay 50ms; }

case_link_down_before_addr() {
    link_down "$NEAR"
    proc client id addr:"$SERVER_ADDR:$PORT" event destroy
    finish
    link_up
}

case_link_down_before_route() {
    fifos resolved down
    proc client id addr:"$SERVER_ADDR:$PORT" event tell:resolved hear:down route event destroy
    hear resolved
    link_down "$FAR"
    tell down
    finish
    link_up
}

# The kernel's CM gives up after some 70 s. TCP, below siw, would need two minutes, and is limited to
# two retries.
case_link_down_before_connect() {
    local retries
    read -r retries </proc/sys/net/ipv4/tcp_syn_retries
    echo 2 >/proc/sys/net/ipv4/tcp_syn_retries
    fifos listening resolved down
    proc server $(listen_steps) tell:listening hear:down pending destroy
    hear listening
    proc client $(resolve_steps) qp tell:resolved hear:down connect answer destroy
    hear resolved
    link_down "$FAR"
    tell down
    tell down
    finish
    link_up
    echo "$retries" >/proc/sys/net/ipv4/tcp_syn_retries
}

# An outstanding message is flushed when the program disconnects; the peer cannot be notified.
case_link_down_traffic() {
    lacks_flow_control && return
    fifos listening reached down
    proc server $(listen_steps) tell:listening event qp recv:16 accept event got:100 tell:reached stop
    hear listening
    proc client $(connect_steps) send:100 hear:down post pending disconnect reap event destroy
    hear reached
    link_down "$FAR"
    tell down
    wait_proc client
    kill_proc server
    link_up
    finish
}

# The peer's hardware address changes for a moment: an id over RoCE gets UNREACHABLE, and its QP goes on.
neighbour_astray() {
    local link=$NEAR mac
    [ "$DEVICE" != ib ] || link=ib0
    fifos listening reached astray back
    proc server $(listen_steps) tell:listening event qp recv:16 accept event got:16 event use:1 disconnect destroy \
        use:0 destroy
    hear listening
    proc client "$@" destroy
    hear reached
    mac=$(ip link show "$link")
    read -r _ mac _ <<<"${mac#*link/}"
    ip neigh replace "$SERVER_ADDR" lladdr "$mac" dev "$link" nud permanent || echo "no neighbour" >>troubles
    tell astray
    know_neighbours
    tell back
    finish
}

case_neighbour_astray() {
    local seen=event
    [ "$DEVICE" = rxe ] || seen=pending
    neighbour_astray $(connect_steps) tell:reached hear:astray $seen hear:back send:16 disconnect event
}

# The first rdma_disconnect takes the event for its own.
case_neighbour_astray_sync() {
    local again=()
    [ "$DEVICE" != rxe ] || again=(disconnect)
    neighbour_astray sync addr:"$SERVER_ADDR:$PORT" route qp recv:8 connect tell:reached hear:astray hear:back send:16 \
        disconnect "${again[@]}"
}

# ---- device removal -------------------------------------------------------------------------

# `removal DEVICE` begins to remove the device. `removed` waits for the end of the removal (each case
# checks that it ends) and adds the device again. Step `cut`: see steps.c.

case_removal_bound() {
    fifos reached
    proc client id bind:"$CLIENT_ADDR:$PORT" cut tell:reached event pending destroy
    hear reached
    removal "$CLIENT_DEV"
    finish
    removed
}

# The kernel destroys its id soon after the event. Only after the end of the removal is the id
# certainly gone when the program connects.
case_removal_resolved() {
    fifos reached gone
    proc client $(resolve_steps) qp cut tell:reached event pending hear:gone connect destroy
    hear reached
    removal "$CLIENT_DEV"
    removed
    tell gone
    finish
}

# A listener on the wildcard address does not belong to the device and gets no event; one on the
# device's address gets one.
case_removal_listening() {
    fifos any bound gone
    proc any id bind:0.0.0.0:"$PORT" listen:5 tell:any hear:gone pending destroy
    hear any
    proc bound id bind:"$SERVER_ADDR:$((PORT + 1))" listen:5 cut tell:bound event pending destroy
    hear bound
    removal "$SERVER_DEV"
    wait_proc bound
    tell gone
    finish
    removed
}

case_removal_connecting() {
    fifos listening connecting reached
    proc server $(listen_steps) tell:listening arrived tell:reached stop
    hear listening
    proc client $(resolve_steps) qp connect hear:reached cut tell:connecting event pending destroy
    hear connecting
    removal "$CLIENT_DEV"
    wait_proc client
    kill_proc server
    finish
    removed
}

# The kernel reports the removal and disconnects the connected ids of the device.
case_removal_connected_server() {
    fifos listening reached established
    proc server $(listen_steps) tell:listening $(accept_steps) hear:established cut tell:reached event event \
        pending use:1 disconnect destroy use:0 destroy
    hear listening
    proc client $(connect_steps) tell:established event disconnect destroy
    hear reached
    removal "$SERVER_DEV"
    finish
    removed
}

case_removal_connected_client() {
    fifos listening reached
    proc server $(listen_steps) tell:listening $(accept_steps) event use:1 disconnect destroy use:0 destroy
    hear listening
    proc client $(connect_steps) cut tell:reached event pending disconnect destroy
    hear reached
    removal "$CLIENT_DEV"
    finish
    removed
}

# Without `cut` the removal is not reported before the processes end, and then it completes.
case_removal_waits() {
    [ "$DEVICE" = ib ] && unsuited "this adapter does not wait for its users" && return
    fifos reached end
    proc client id bind:"$CLIENT_ADDR:$PORT" tell:reached hear:end pending destroy
    hear reached
    removal "$CLIENT_DEV"
    tell end
    finish
    removed
}

# Each group runs in one lab: after each case the link and the devices are restored.
declare -A fault_groups=(
    [refused]="not_listening not_listening_sync not_listening_programs"
    [killed]="killed_resolved killed_connecting killed_before_accept killed_listening killed_idle_client
        killed_idle_server killed_traffic_client killed_traffic_server killed_disconnecting_client
        killed_disconnected_server killed_rping"
    [limits]="files files_sync files_later memlock"
    [network]="loss_1 loss_10 delay_50 link_down_before_addr link_down_before_route
        neighbour_astray neighbour_astray_sync"
    [removal]="removal_bound removal_resolved removal_listening removal_connecting
        removal_connected_server removal_connected_client removal_waits"
    [full]="backlog"
    [dead_connect]="link_down_before_connect"
    [dead_traffic]="link_down_traffic"
)
fault_group_names=(refused killed limits network removal)
# These cases mostly wait for timeouts of the kernel's CM, so they run in additional labs, in parallel.
slow_fault_group_names=(full dead_connect dead_traffic)

# shellcheck shell=bash
# What the files cases.sh of tests/programs and tests/rsockets fill. Read by tests/run on the host (names only) and by
# `guest` in the lab, which first sets the addresses of servers, ADDR and ADDR6, and of clients, OWN and OWN6.

# One entry per case in each array.
case_names=() case_groups=() case_ready=() case_clients=() case_server=() case_client=() case_expect=()

# add NAME READY CLIENTS SERVER-COMMAND CLIENT-COMMAND [EXPECT], in the function `cases_GROUP`
# READY is the condition for clients to start:
#   listen     the server's id is listening
#   persistent the same, and the server serves until it is terminated
#   mcast:MAC  the link receives the multicast address (the receiver has attached its QP)
#   tcp:PORT   a TCP socket listens (where the ends of cmtime 65.0 synchronise)
#   udp:PORT   a UDP socket is bound to the port, and the server serves until it is terminated
# The commands' words are separated by blanks and contain none. EXPECT: the status of the clients, 0.
# Functions before_NAME, prepare_NAME and finish_NAME run before a case, and before and after each of its pairings.
add() {
    case_groups+=("$group")
    case_names+=("$1")
    case_ready+=("$2")
    case_clients+=("$3")
    case_server+=("$4")
    case_client+=("$5")
    case_expect+=("${6:-0}")
}

define_cases() {
    local group
    # shellcheck disable=SC2154 # of cases.sh
    for group in "${case_groups_all[@]}"; do "cases_$group"; done
}

# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154 # shared with lib.sh and guest
# Python's asyncio, selectors and socketserver. See lib.sh for the functions of a case.

case_asyncio() {
    serve server 9000 python3 -u "$here/apps/asyncio_peer.py" server "$ADDR" 9000
    client client python3 "$here/apps/asyncio_peer.py" client "$ADDR" 9000
    stop_server
    payload "$(<client.out)"
    fact "$(<client.out) bytes over 10 connections at once"
}

selectors_case() {
    serve server 9001 python3 -u "$here/apps/selectors_peer.py" server "$1" "$ADDR" 9001
    client client python3 "$here/apps/selectors_peer.py" client "$1" "$ADDR" 9001
    stop_server
    payload "$(<client.out)"
    fact "$(<client.out) bytes over 6 connections at once"
}
case_selectors_epoll() { selectors_case EpollSelector; }
case_selectors_poll() { selectors_case PollSelector; }
case_selectors_select() { selectors_case SelectSelector; }

# Fork mode serves a client's connections in turn, as rdma-core's (preload.md).
at_once() { if [ "$mode" = auto ]; then echo 5; else echo 1; fi; }

case_fork_python() {
    extra_env=(RDMAV_FORK_SAFE=1)
    serve server 9002 python3 -u "$here/apps/fork_server.py" "$ADDR" 9002
    client client python3 "$here/apps/fork_client.py" "$ADDR" 9002 "$(at_once)"
    stop_server
    payload "$(<client.out)"
    fact "$(<client.out) bytes, a process for each of 5 connections, fork support on"
}

case_fork_c() {
    extra_env=(RDMAV_FORK_SAFE=1)
    serve server 9003 "$FORKSERVER" "$ADDR" 9003
    client client python3 "$here/apps/fork_client.py" "$ADDR" 9003 "$(at_once)"
    stop_server
    payload "$(<client.out)"
    fact "$(<client.out) bytes, a process for each of 5 connections, fork support on"
}

# rsync's daemon forks for each client, its client forks a receiver.
rsync_daemon() {
    extra_env=(RDMAV_FORK_SAFE=1)
    mkdir -p data
    for i in 1 2 3 4 5; do random "data/file$i" $((i * 200000)); done
    mkdir -p data/folder
    echo text >data/folder/text
    cat >rsyncd.conf <<CONF
use chroot = no
uid = root
gid = root
log file = $PWD/rsyncd.log
[data]
path = $PWD/data
[upload]
path = $PWD/upload
read only = no
CONF
    serve server 8730 rsync --daemon --no-detach "--address=$ADDR" --port=8730 "--config=$PWD/rsyncd.conf"
}
case_rsync_pull() {
    rsync_daemon
    client client rsync -r "rsync://$ADDR:8730/data/" download/
    stop_server
    must "the fetched files differ" diff -r data download
    payload 3000000
    fact "3 MB in 6 files, fork support on"
}
case_rsync_push() {
    mkdir -p upload
    rsync_daemon
    client client rsync -r data/ "rsync://$ADDR:8730/upload/"
    stop_server
    must "the sent files differ" diff -r data upload
    payload 3000000
    fact "3 MB in 6 files, fork support on"
}

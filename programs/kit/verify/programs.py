"""The unmodified programs that are run where a host has them, and programs over rsockets."""

from .pairs import pair

ROCE_IB = ("rxe", "ib")


def rdmacm_utils():
    both_sizes = [pair(f"rping-verify-{size}", f"rping -s -a @A -p @P -C 100 -V -S {size}",
                       f"rping -c -a @A -p @P -C 100 -V -S {size}") for size in (64, 65535)]
    return [
        pair("rping-10", "rping -s -a @A -p @P -C 10 -v", "rping -c -a @A -p @P -C 10 -v"), *both_sizes,
        pair("ucmatose", "ucmatose -p @P", "ucmatose -p @P -s @A"),
        pair("ucmatose-30", "ucmatose -p @P -c 30 -C 100", "ucmatose -p @P -s @A -c 30 -C 100",
             devices=ROCE_IB),
        # -p is its port space.
        pair("udaddy", "udaddy", "udaddy -s @A", devices=ROCE_IB),
        pair("rdma_client", "rdma_server -s @A -p @P", "rdma_client -s @A -p @P"),
    ]


def rsockets():
    few = "-I 5 -C 4"
    cases = [pair(f"{program}-{size}", f"{program} -b @A -p @P -T b -T v -S {size} {few}",
                  f"{program} -s @A -p @P -T b -T v -S {size} {few}")
             for program in ("rstream", "riostream") for size in (64, 65536)]
    for test in ("stream", "client-first", "server-first", "iomap", "keepalive", "parallel"):
        cases.append(pair(f"peer-{test}", f"{{kit}}/programs/tools/rsockets_peer server @A {test}", f"{{kit}}/programs/tools/rsockets_peer client @A {test}"))
    smallest = {"PEER_SQ": "16", "PEER_RQ": "16", "PEER_INLINE": "0", "PEER_RCVBUF": "1024", "PEER_SNDBUF": "1024",
                "PEER_TOTAL": "200000"}
    cases.append(pair("peer-stream-smallest", "{kit}/programs/tools/rsockets_peer server @A stream", "{kit}/programs/tools/rsockets_peer client @A stream",
                      env=smallest))
    return cases


# ---- perftest, fio, libfabric ------------------------------------------------------------------


def perftest(cpus):
    """-R: connections by the RDMA CM. -z: parameters are exchanged over one, too. Soft-iWARP takes small queues."""
    cases = []
    # Two ends that poll on one processor wait for the scheduler at each message: events there.
    few = " -e -n 200" if cpus < 2 else " -n 500"
    for name, option in (("", "-R"), ("-z", "-z")):
        for program, column in (("ib_send_bw", 2), ("ib_write_bw", 2), ("ib_read_bw", 2), ("ib_send_lat", 3),
                                ("ib_write_lat", 3)):
            bandwidth = program.endswith("bw")
            if program == "ib_write_lat" and cpus < 2:
                continue  # it polls memory
            words = f"{program} {option} -F -d @D -p @P" + (" -s 65536 -n 500 -t 16" if bandwidth else " -s 64" + few)
            pattern = r"^ *\d+ +\d+" + r" +[\d.]+" * (column - 1) + r" +([\d.]+)"
            cases.append(pair(f"{program}{name}", words, f"{words} @A", figure=("MB/s" if bandwidth else "us", pattern)))
    return cases


def fio():
    """The client's verb decides; for fio its own end writes, and the server's reads."""
    # Processes would leave the agent's session, threads do not. What is sent before the server has posted receives ends
    # the connection, as fio allows no RNR retries; both ends then wait for ever. On iWARP the server alone notices it.
    races = {"send": "RNR retry counter exceeded|Work Request Flushed Error"}
    common = "fio --thread --ioengine=rdma --port=@P --bs=64k --size=4m"
    return [pair(f"fio-{verb}", f"{common} --name=server --rw=read --iodepth=16",
                 f"{common} --name=client --rw=write --verb={verb} --hostname=@A --iodepth=8 --iodepth_batch_complete=1",
                 figure=("ms for 4 MB", r"iB/(\d+)msec"), limit=60,
                 race=races.get(verb, "RNR retry counter exceeded")) for verb in ("write", "read", "send")]


def libfabric():
    cases = []
    for name, provider, kind in (("msg", "verbs", "msg"), ("rdm", "verbs;ofi_rxm", "rdm")):
        words = f"fi_pingpong -p {provider} -e {kind} -I 100 -S 4096"
        cases.append(pair(f"fi_pingpong-{name}", f"{words} -B @P", f"{words} -P @P @A", ready="tcp:@P",
                          figure=("us/transfer", r"^\S+ .* ([\d.]+) +[\d.]+$")))
    return cases


def found_programs(cpus):
    """cpus: the number of processors of the host that has fewer."""
    return rdmacm_utils() + perftest(cpus) + fio() + libfabric()

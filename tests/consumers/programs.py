"""Packaged programs that rdmacm-verify does not run, because few machines have them: a server and a client for each."""

import pathlib

from verify.pairs import pair
from verify.programs import ROCE_IB, fio, libfabric, perftest, rdmacm_utils


def table(build):
    """build: the folder of programs compiled for this (ucp_client_server, an example of UCX; fio-librpma; crates/bin)."""
    build = pathlib.Path(build)
    return crates(build / "crates/bin") + qperf() + dapl() + ucx(build) + libfabric() + fio() + librpma(build / "fio-librpma") + \
        perftest(1) + rdmacm_utils()


def qperf():
    return [pair(f"qperf-{test}", "qperf --listen_port @P", f"qperf --listen_port @P @A --use_cm 1 --time 1 {test}", ready="tcp:@P",
                 persistent=True, check=r"(latency|bw) +=", needs=["qperf"]) for test in ("rc_lat", "rc_bw", "rc_rdma_write_bw")]


def ucx(build):
    """ucp_client_server connects by rdmacm; ucx_perftest exchanges addresses over TCP, and only loads it."""
    env = {"UCX_NET_DEVICES": "@D:1", "UCX_TLS": "rc_verbs,ud_verbs,self", "UCX_SOCKADDR_TLS_PRIORITY": "rdmacm"}
    example = f"{build}/ucp_client_server -p @P -i 20"
    return [
        pair("ucp_client_server-tag", f"{example} -c tag", f"{example} -c tag -a @A", devices=ROCE_IB, env=env, persistent=True,
             check="iteration #20"),
        pair("ucp_client_server-stream", f"{example} -c stream", f"{example} -c stream -a @A", devices=ROCE_IB, env=env,
             persistent=True, check="iteration #20"),
        pair("ucx_perftest-tag_lat", "ucx_perftest -p @P", "ucx_perftest -p @P @A -t tag_lat -n 50 -w 5", devices=ROCE_IB, env=env,
             ready="tcp:@P", evidence=False),
    ]


def dapl():
    """The provider's name is in the dat.conf that the guest writes. The server's TCP port is always this one."""
    common = "dtest -b 1024 -P ofa-v2-lab"
    return [pair("dtest", common, f"{common} -h @A", ready="tcp:15828", check="Test Complete. PASSED")]


def librpma(program):
    """fio's engines for persistent memory (tests/consumers/fio-librpma), if they could be built. The
    server uses ordinary memory. librpma_apm flushes by RDMA reads, and its client reads the data
    back and verifies it. librpma_gpspm sends messages that ask the server to flush, and cannot read."""
    # fio accepts an engine's options only after --ioengine.
    words = f"{program} --thread --create_serialize=0 --ioengine={{}} --serverip=@A --port=@P --iodepth=8"
    cases = []
    for engine, server, client, check in (("librpma_apm", "", "--verify=crc32c", "READ: bw="),
                                          ("librpma_gpspm", "--busy_wait_polling=0 --time_based --runtime=1h", "", "WRITE: bw=")):
        cases.append(pair(f"fio-{engine}", f"{words.format(engine + '_server')} --name=server --filename=malloc --size=4m "
                          f"--direct_write_to_pmem=0 {server}",
                          f"{words.format(engine + '_client')} --name=client --rw=write --bs=64k --iodepth_batch_submit=4 {client}",
                          figure=("ms for 4 MB", r"iB/(\d+)msec"), limit=60, check=check))
    return cases if program.exists() else []


def crates(folder):
    """Rust crates (tests/consumers/crates), those that could be built. cm_server listens at port 7471; cm_client passes
    strings without a final zero byte, and needs memory that has zeros."""
    cases = [
        pair("sideway-cmtime", f"{folder}/cmtime -b @A -p @P", f"{folder}/cmtime -s @A -p @P -c 10", persistent=True,
             check="Disconnect"),
        pair("async-rdma-cm", f"{folder}/cm_server", f"{folder}/cm_client @A 7471", devices=ROCE_IB,
             env={"MALLOC_PERTURB_": "255"}, check="cm_client: end"),
    ]
    return [case for case in cases if pathlib.Path(case.client[0]).exists()]

//! Lists of the kernel's mappings.

use super::*;

#[test]
fn mappings_of_an_earlier_port_mapper() {
    let mut world = World::registered();
    assert_eq!(world.restore("10.0.0.1:7000", "10.0.0.1:45000"), [Out::Open(45000)]);
    assert_eq!(world.restore("0.0.0.0:7001", "0.0.0.0:45001"), [Out::Open(45001)]);
    assert_eq!(world.restore("0.0.0.0:7001", "0.0.0.0:45001"), []);
    assert_eq!(world.restore("10.0.0.1:7000", "10.0.0.1:45002"), [error(6, ErrorCode::DuplicateMapping)]);
    let values = [Value::U32(7), Value::U32(4), Value::U32(3)];
    let out = world.kernel_sends(RDMA_NL_IWPM_MAPINFO_NUM, KernelMessage::MapInfoNumber(4));
    assert_eq!(out, [answer(RDMA_NL_IWPM_MAPINFO_NUM, &values)]);
    assert_eq!(world.remove("0.0.0.0:7001"), [], "two listeners");
    assert_eq!(world.remove("0.0.0.0:7001"), [Out::Close(2)]);
    assert_eq!(world.remove("10.0.0.1:7000"), [Out::Close(1)]);
}

#[test]
fn a_list_after_an_overrun_is_applied() {
    let mut world = World::registered();
    for local in ["10.0.0.1:7000", "0.0.0.0:7001", "0.0.0.0:7001", "10.0.0.1:7002"] {
        world.add(local);
    }
    world.at(60_000);
    world.add("10.0.0.1:7003");
    world.engine.overrun(world.now);
    assert_eq!(world.act(), [list_request(2, 4)]);
    // A second overrun shortly afterwards requests a list later.
    world.engine.overrun(world.now);
    assert_eq!(world.act(), []);
    assert_eq!(world.at(61_000), [list_request(2, 4)]);
    world.restore("10.0.0.1:7000", "10.0.0.1:40001");
    world.restore("0.0.0.0:7001", "0.0.0.0:40002");
    let out = world.kernel_sends(RDMA_NL_IWPM_MAPINFO_NUM, KernelMessage::MapInfoNumber(2));
    assert_eq!(out[1..], [Out::Close(3)], "7002 is gone, 7003 is too recent to tell");
    assert_eq!(world.remove("0.0.0.0:7001"), [Out::Close(2)], "the removal of one of two listeners was lost");
    assert_eq!(world.engine.mappings(), 2);
}

#[test]
fn an_incomplete_list_is_not_applied() {
    let mut world = World::registered();
    world.add("10.0.0.1:7000");
    world.at(60_000);
    world.engine.overrun(world.now);
    world.act();
    assert_eq!(world.kernel_sends(RDMA_NL_IWPM_MAPINFO_NUM, KernelMessage::MapInfoNumber(1)).len(), 1);
    assert_eq!(world.engine.mappings(), 1);
}

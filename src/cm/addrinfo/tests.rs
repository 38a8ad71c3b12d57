//! rdma_getaddrinfo() with a simulated environment. The expected bytes are those that rdma-core
//! returned.

use std::cell::RefCell;
use std::ffi::c_void;

use super::*;
use crate::acm::wire::parse_answer;
use crate::ffi::{RAI_DNS, RAI_FAMILY, RAI_NOROUTE, RAI_NUMERICHOST, RAI_SA};
use crate::os::sockaddr::AF_IB;

/// An environment with given answers, which records the queries.
#[derive(Default)]
struct World {
    no_devices: bool,
    no_af_ib: bool,
    answer: Option<Answer>,
    asked: RefCell<Vec<Query>>,
    records: Vec<(u8, Vec<ServiceRecord>)>,
    searched: RefCell<Vec<Service>>,
}

impl Env for World {
    fn need_devices(&self) -> Result<()> {
        if self.no_devices { Err(Errno::ENODEV) } else { Ok(()) }
    }

    fn af_ib(&self) -> bool {
        !self.no_af_ib
    }

    fn ask_acm(&self, query: &Query) -> Option<Answer> {
        self.asked.borrow_mut().push(*query);
        self.answer
    }

    fn ask_sa(&self, service: &Service, found: &mut Found<'_>) -> Result<()> {
        self.searched.borrow_mut().push(*service);
        self.records.iter().try_for_each(|(gid, records)| found([*gid; 16], records))
    }
}

/// An entry of a result, as a C program sees it.
#[derive(Debug)]
struct Shown {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
    src: Vec<u8>,
    dst: Vec<u8>,
    route: Vec<u8>,
    connect: Vec<u8>,
}

fn show(list: List) -> Vec<Shown> {
    let first = list.into_c();
    let (mut next, mut shown) = (first, Vec::new());
    // SAFETY: `ptr` is readable for `len` bytes or NULL.
    let bytes = |ptr: *const c_void, len: usize| unsafe {
        assert_eq!(ptr.is_null(), len == 0);
        if len == 0 { Vec::new() } else { std::slice::from_raw_parts(ptr.cast::<u8>(), len).to_vec() }
    };
    // SAFETY: the entries of the list.
    while let Some(info) = unsafe { next.as_ref() } {
        assert!(info.ai_src_canonname.is_null() && info.ai_dst_canonname.is_null());
        shown.push(Shown {
            flags: info.ai_flags,
            family: info.ai_family,
            qp_type: info.ai_qp_type,
            port_space: info.ai_port_space,
            src: bytes(info.ai_src_addr.cast(), info.ai_src_len as usize),
            dst: bytes(info.ai_dst_addr.cast(), info.ai_dst_len as usize),
            route: bytes(info.ai_route, info.ai_route_len),
            connect: bytes(info.ai_connect, info.ai_connect_len),
        });
        next = info.ai_next;
    }
    // SAFETY: from `into_c`; nothing uses it any more.
    drop(unsafe { List::from_c(first) });
    shown
}

/// Returns hints with RAI_* flags, family, QP type and port space.
fn given(flags: u32, family: c_int, qp_type: c_int, port_space: c_int) -> Hints<'static> {
    Hints { flags, family, qp_type, port_space, ..Hints::default() }
}

fn with_src<'a>(hints: Hints<'a>, src: &'a [u8]) -> Hints<'a> {
    Hints { src: Ok(src), ..hints }
}

fn with_dst<'a>(hints: Hints<'a>, dst: &'a [u8]) -> Hints<'a> {
    Hints { dst: Ok(dst), ..hints }
}

fn run(
    world: &World,
    node: Option<&CStr>,
    service: Option<&CStr>,
    hints: Option<&Hints<'_>>,
) -> std::result::Result<Vec<Shown>, GaiError> {
    getaddrinfo(world, node, service, hints).map(show)
}

/// Returns the only entry for node 10.77.1.1, service 7174 with these hints.
fn one(hints: &Hints<'_>) -> Shown {
    let mut list = run(&World::default(), Some(c"10.77.1.1"), Some(c"7174"), Some(hints)).unwrap();
    assert_eq!(list.len(), 1);
    list.remove(0)
}

fn v4(port: u16, ip: [u8; 4]) -> Vec<u8> {
    [&2u16.to_ne_bytes()[..], &port.to_be_bytes(), &ip, &[0; 8]].concat()
}

fn v6(port: u16, ip: [u8; 16]) -> Vec<u8> {
    [&10u16.to_ne_bytes()[..], &port.to_be_bytes(), &[0; 4], &ip, &[0; 4]].concat()
}

fn ib(pkey: u16, flow: u32, gid: [u8; 16], sid: u64, mask: u64) -> Vec<u8> {
    let head = [&27u16.to_ne_bytes()[..], &pkey.to_be_bytes(), &flow.to_be_bytes(), &gid].concat();
    [&head[..], &sid.to_be_bytes(), &mask.to_be_bytes(), &[0; 8]].concat()
}

/// Returns the RoCE GID of an IPv4 address.
fn roce(ip: [u8; 4]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].fill(0xFF);
    gid[12..].copy_from_slice(&ip);
    gid
}

const FD00: [u8; 16] = [0xFD, 0, 0, 0x77, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
const HERE: [u8; 4] = [10, 77, 1, 2];
const THERE: [u8; 4] = [10, 77, 1, 1];

fn record(flags: u32, kind: u16, info: &[u8]) -> Vec<u8> {
    let mut bytes = [&flags.to_ne_bytes()[..], &kind.to_ne_bytes(), &[0; 2], info].concat();
    bytes.resize(72, 0);
    bytes
}

/// A path with flow label 0x12345 and P_Key 0x8001.
fn path(sgid: [u8; 16], dgid: [u8; 16]) -> Vec<u8> {
    let mut info = [&[0; 8][..], &dgid, &sgid, &[0; 4], &0xF123_4540u32.to_be_bytes(), &[0, 0x81]].concat();
    info.extend(0x8001u16.to_be_bytes());
    record(0x2B, 0x10, &info)
}

fn route(sgid: [u8; 16], dgid: [u8; 16]) -> Vec<u8> {
    let mut data = path(sgid, dgid);
    data[4] = 0;
    data
}

fn answer(records: &[Vec<u8>]) -> World {
    let mut message = vec![1, 0x81, 0, 0, 0, 0];
    message.extend(((16 + 72 * records.len()) as u16).to_ne_bytes());
    message.extend([0; 8]);
    message.extend(records.concat());
    World { answer: Some(parse_answer(&message).unwrap().1), ..World::default() }
}

#[test]
fn empty_query_is_rejected_before_devices_are_searched() {
    let world = World { no_devices: true, ..World::default() };
    assert_eq!(run(&world, None, None, None).unwrap_err(), GaiError::Errno(Errno::EINVAL));
    assert_eq!(run(&world, None, None, Some(&Hints::default())).unwrap_err(), GaiError::Errno(Errno::ENODEV));
}

#[test]
fn codes_of_the_resolver_are_returned() {
    let world = World::default();
    let code = |node, service, hints: &_| match run(&world, node, service, Some(hints)) {
        Err(GaiError::Gai(code)) => code,
        other => panic!("{other:?}"),
    };
    let node = Some(c"10.77.1.1");
    assert_eq!(code(node, Some(c"1"), &given(0, 0, 4, 0x106)), libc::EAI_SOCKTYPE);
    assert_eq!(code(node, Some(c"1"), &given(0, 0, 2, 0x111)), libc::EAI_SOCKTYPE);
    assert_eq!(code(node, Some(c"1"), &given(0, 77, 0, 0)), libc::EAI_FAMILY);
    assert_eq!(code(node, Some(c"no service"), &given(0, 0, 0, 0x106)), libc::EAI_SERVICE);
    assert_eq!(code(Some(c"localhost"), None, &given(RAI_NUMERICHOST, 0, 0, 0)), libc::EAI_NONAME);
    assert_eq!(code(node, None, &given(0, libc::AF_INET6, 0, 0)), -9); // EAI_ADDRFAMILY
}

#[test]
fn types_from_hints_or_from_what_was_found() {
    let types = |qp_type, port_space| {
        let shown = one(&given(0, 0, qp_type, port_space));
        (shown.qp_type, shown.port_space)
    };
    assert_eq!(types(0, 0), (2, 0x106));
    assert_eq!(types(0, 0x106), (2, 0x106));
    assert_eq!(types(0, 0x111), (4, 0x111));
    assert_eq!(types(0, 2), (4, 2));
    assert_eq!(types(0, 0x13F), (2, 0x13F));
    assert_eq!(types(4, 0x13F), (4, 0x13F));
    assert_eq!(types(3, 0), (3, 0x106));
    assert_eq!(types(4, 0), (4, 0x111));
    assert_eq!(types(9, 0), (9, 0x106));
    assert_eq!(types(10, 0), (10, 0x106));
    assert_eq!(types(8, 0), (8, 0x106));
    assert_eq!(types(0, 0x999), (2, 0x999));
}

#[test]
fn without_hints_the_node_is_the_destination() {
    let list = run(&World::default(), Some(c"10.77.1.1"), Some(c"7174"), None).unwrap();
    let [shown] = &list[..] else { panic!("{list:?}") };
    assert_eq!((shown.flags, shown.family, shown.qp_type, shown.port_space), (0, 2, 2, 0x106));
    assert_eq!((&shown.src[..], &shown.dst), (&[][..], &v4(7174, THERE)));
}

#[test]
fn passive_is_the_source_and_queries_nobody() {
    let world = answer(&[path([1; 16], [2; 16])]);
    let hints = given(RAI_PASSIVE, 0, 0, 0x106);
    let list = run(&world, Some(c"10.77.1.1"), Some(c"7174"), Some(&hints)).unwrap();
    assert_eq!((&list[0].src, &list[0].dst[..], list[0].flags), (&v4(7174, THERE), &[][..], 1));
    let list = run(&world, None, Some(c"7174"), Some(&hints)).unwrap();
    assert_eq!(list[0].src, v4(7174, [0; 4]));
    assert!(world.asked.borrow().is_empty());
}

#[test]
fn only_passive_stays_in_the_flags() {
    assert_eq!(one(&given(RAI_NUMERICHOST | RAI_NOROUTE | RAI_DNS | 0x4000_0000, 0, 0, 0)).flags, 0);
    assert_eq!(one(&given(RAI_NUMERICHOST | RAI_PASSIVE, 0, 0, 0)).flags, 1);
}

#[test]
fn source_of_the_hints_where_there_is_none() {
    let src = v4(5, HERE);
    let shown = one(&with_src(given(0, 0, 0, 0x106), &src));
    assert_eq!((shown.src, shown.dst), (src.clone(), v4(7174, THERE)));
    let shown = one(&with_src(given(RAI_PASSIVE, 0, 0, 0x106), &src));
    assert_eq!(shown.src, v4(7174, THERE));
}

#[test]
fn hints_alone_are_copied() {
    let (src, dst) = (v4(5, HERE), v4(6, THERE));
    let hints = with_dst(with_src(given(7, 10, 3, 0x106), &src), &dst);
    let list = run(&World::default(), None, None, Some(&hints)).unwrap();
    let [shown] = &list[..] else { panic!("{list:?}") };
    assert_eq!((shown.flags, shown.family, shown.qp_type, shown.port_space), (7, 10, 3, 0x106));
    assert_eq!((&shown.src, &shown.dst), (&src, &dst));
}

#[test]
fn invalid_address_is_an_error_where_it_is_used() {
    let error = |node, hints: Hints<'_>| run(&World::default(), node, None, Some(&hints)).unwrap_err();
    let invalid = GaiError::Errno(Errno::EINVAL);
    let src = Hints { src: Err(Errno::EINVAL), ..Hints::default() };
    assert_eq!(error(None, src), invalid);
    assert_eq!(error(Some(c"10.77.1.1"), src), invalid);
    let passive = Hints { flags: RAI_PASSIVE, ..src };
    assert!(run(&World::default(), Some(c"10.77.1.1"), None, Some(&passive)).is_ok());
    let dst = Hints { dst: Err(Errno::EINVAL), ..Hints::default() };
    assert_eq!(error(None, dst), invalid);
    assert!(run(&World::default(), Some(c"10.77.1.1"), None, Some(&dst)).is_ok());
}

#[test]
fn numeric_gids() {
    let gid = |node, service, port_space, flags| {
        let hints = given(RAI_FAMILY | RAI_NUMERICHOST | flags, AF_IB, 0, port_space);
        let mut list = run(&World::default(), Some(node), service, Some(&hints)).unwrap();
        let shown = list.remove(0);
        assert_eq!(shown.family, AF_IB);
        if flags == 0 { shown.dst } else { shown.src }
    };
    let all = u64::MAX;
    assert_eq!(gid(c"fd00:77:1::1", Some(c"7174"), 0x106, 0), ib(0xFFFF, 0, FD00, 0x0106_1C06, all));
    assert_eq!(gid(c"fd00:77:1::1", Some(c"7174"), 0, 0), ib(0xFFFF, 0, FD00, 0x0106_1C06, all));
    assert_eq!(gid(c"fd00:77:1::1", Some(c"7174"), 2, 0), ib(0xFFFF, 0, FD00, 0x0002_1C06, all));
    assert_eq!(gid(c"fd00:77:1::1", None, 0x106, 0), ib(0xFFFF, 0, FD00, 0x0106_0000, all << 16));
    assert_eq!(gid(c"fd00:77:1::1", Some(c"0"), 0x13F, RAI_PASSIVE), ib(0xFFFF, 0, FD00, 0x013F_0000, all << 16));
}

#[test]
fn gids_need_all_three_hints() {
    for flags in [RAI_FAMILY, RAI_NUMERICHOST, 0] {
        let list =
            run(&World::default(), Some(c"fd00:77:1::1"), Some(c"7174"), Some(&given(flags, AF_IB, 0, 0))).unwrap();
        assert_eq!((list[0].family, &list[0].dst), (10, &v6(7174, FD00)), "{flags:#x}");
    }
}

// rdma-core reads an IPv4 address as a GID, beyond the end of the address.
#[test]
fn ipv4_address_is_not_a_gid() {
    let hints = given(RAI_FAMILY | RAI_NUMERICHOST, AF_IB, 0, 0x106);
    let error = run(&World::default(), Some(c"10.77.1.1"), Some(c"1"), Some(&hints)).unwrap_err();
    assert_eq!(error, GaiError::Gai(-9)); // EAI_ADDRFAMILY
    let hints = given(RAI_FAMILY | RAI_NUMERICHOST | RAI_PASSIVE, AF_IB, 0, 0x106);
    let list = run(&World::default(), None, Some(c"7174"), Some(&hints)).unwrap();
    assert_eq!(list[0].src, ib(0xFFFF, 0, [0; 16], 0x0106_1C06, u64::MAX));
}

#[test]
fn queries_to_ibacm() {
    let world = World::default();
    let src = v4(5, HERE);
    let mut hints = with_src(given(RAI_NOROUTE, 0, 0, 0x106), &src);
    let data: Vec<u8> = (1..=144).collect();
    for len in [0, 64, 72, 144] {
        hints.route = &data[..len];
        run(&world, Some(c"10.77.1.1"), Some(c"7174"), Some(&hints)).unwrap();
    }
    let asked = world.asked.borrow();
    assert!(
        asked
            .iter()
            .all(|query| query.no_delay && port(query.src.unwrap().storage()) == 5_u16.to_be() && query.dst.is_some())
    );
    let first = asked.iter().map(|query| query.path.map(|path| path[0])).collect::<Vec<_>>();
    assert_eq!(first, [None, Some(1), Some(9), Some(0)]);
}

#[test]
fn ib_entry_with_the_path_comes_first() {
    let (sgid, dgid) = (roce(HERE), roce(THERE));
    let world = answer(&[path(sgid, dgid), record(1, 2, &HERE), path(sgid, dgid)]);
    let list = run(&world, Some(c"10.77.1.1"), Some(c"7174"), Some(&given(0, 0, 0, 0x106))).unwrap();
    let [front, main] = &list[..] else { panic!("{list:?}") };
    assert_eq!((front.family, front.qp_type, front.port_space), (AF_IB, 2, 0x106));
    assert_eq!(front.src, ib(0x8001, 0x12345, sgid, 0x0106_0000, u64::MAX << 16));
    assert_eq!(front.dst, ib(0x8001, 0x12345, dgid, 0x0106_1C06, u64::MAX));
    assert_eq!(front.connect, [&[0, 0x40, 0, 0][..], &[0; 12], &HERE, &[0; 12], &THERE].concat());
    assert_eq!(front.route, [route(sgid, dgid), route(sgid, dgid)].concat());
    assert_eq!((main.family, &main.src, &main.dst), (2, &v4(0, HERE), &v4(7174, THERE)));
    assert_eq!(main.route, front.route);
    assert!(main.connect.is_empty());
}

#[test]
fn ipv6_header() {
    let world = answer(&[record(1, 3, &[7; 16]), path([1; 16], [2; 16])]);
    let list = run(&world, Some(c"fd00:77:1::1"), Some(c"7174"), Some(&given(0, 0, 4, 0x111))).unwrap();
    assert_eq!(list[0].connect, [&[0, 0x60, 0, 0][..], &[7; 16], &FD00].concat());
    assert_eq!(list[0].dst, ib(0x8001, 0x12345, [2; 16], 0x0111_1C06, u64::MAX));
    assert_eq!(list[1].src, v6(0, [7; 16]));
}

#[test]
fn native_addresses_need_no_header() {
    let world = answer(&[path([1; 16], [2; 16])]);
    let src = ib(0xFFFF, 0, FD00, 0x0106_0007, u64::MAX);
    let hints = with_src(given(RAI_FAMILY | RAI_NUMERICHOST, AF_IB, 0, 0x106), &src);
    let list = run(&world, Some(c"fd00:77:1::1"), Some(c"7174"), Some(&hints)).unwrap();
    assert_eq!(list[0].src, ib(0x8001, 0x12345, [1; 16], 0x0106_0007, u64::MAX));
    assert_eq!(list[1].src, src);
    assert!(list[0].connect.is_empty());
    let list = run(&world, None, None, Some(&with_src(given(0, AF_IB, 0, 0x106), &src))).unwrap();
    assert_eq!(list[0].dst, ib(0x8001, 0x12345, [2; 16], 0x0106_0000, u64::MAX << 16));
}

// rdma-core crashes in the first two cases and makes an address of stray bytes in the third.
#[test]
fn no_ib_entry_without_both_ip_addresses() {
    let both = |list: &[Shown]| (list.len(), list[0].route.len());
    let world = answer(&[path([1; 16], [2; 16])]);
    let hints = given(0, 0, 0, 0x106);
    assert_eq!(both(&run(&world, Some(c"10.77.1.1"), None, Some(&hints)).unwrap()), (1, 72));
    let src = v4(5, HERE);
    assert_eq!(both(&run(&world, None, None, Some(&with_src(given(0, 2, 0, 0x106), &src))).unwrap()), (1, 72));
    let src = v6(5, FD00);
    assert_eq!(both(&run(&world, Some(c"10.77.1.1"), None, Some(&with_src(hints, &src))).unwrap()), (1, 72));
}

#[test]
fn no_ib_entry_without_af_ib_or_when_only_the_route_is_wanted() {
    let records = [record(1, 2, &HERE), path([1; 16], [2; 16])];
    let old = World { no_af_ib: true, ..answer(&records) };
    let list = run(&old, Some(c"10.77.1.1"), None, Some(&given(0, 0, 0, 0x106))).unwrap();
    assert_eq!((list.len(), list[0].route.len(), list[0].src.len()), (1, 72, 16));
    let list = run(&answer(&records), Some(c"10.77.1.1"), None, Some(&given(0x0100_0000, 0, 0, 0x106))).unwrap();
    assert_eq!((list.len(), list[0].route.len()), (1, 72));
}

#[test]
fn source_without_path() {
    let world = answer(&[record(1, 2, &HERE)]);
    let list = run(&world, Some(c"10.77.1.1"), None, None).unwrap();
    assert_eq!((list.len(), &list[0].src, list[0].route.len()), (1, &v4(0, HERE), 0));
}

fn at(id: u64) -> ServiceRecord {
    // SAFETY: all zeros are a value of this structure of numbers.
    let mut record: ServiceRecord = unsafe { std::mem::zeroed() };
    record.id = id.to_be();
    record
}

#[test]
fn subnet_administrator_is_asked_for_services() {
    let world = World { records: vec![(1, vec![at(5), at(6)]), (2, vec![]), (3, vec![at(7)])], ..World::default() };
    let list = run(&world, None, Some(c"0x10"), Some(&given(RAI_SA, 0, 2, 0))).unwrap();
    assert_eq!(*world.searched.borrow(), [Service::Id(16)]);
    let ends: Vec<_> = list.iter().map(|shown| (shown.src[8], shown.dst[31])).collect();
    assert_eq!(ends, [(1, 5), (1, 6), (3, 7)]);
    assert!(list.iter().all(|shown| (shown.family, shown.port_space, shown.qp_type) == (AF_IB, 0x13F, 0)));
    assert!(world.asked.borrow().is_empty());
}

#[test]
fn rejected_service_look_ups() {
    let error = |node, service, flags| run(&World::default(), node, service, Some(&given(flags, 0, 0, 0))).unwrap_err();
    let errno = |errno| GaiError::Errno(errno);
    assert_eq!(error(Some(c"10.77.1.1"), Some(c"1"), RAI_SA), errno(Errno::ENOTSUP));
    assert_eq!(error(None, None, RAI_SA | RAI_DNS), errno(Errno::ENOTSUP));
    assert_eq!(error(None, None, RAI_SA), errno(Errno::EINVAL));
    assert_eq!(error(None, Some(c"1"), RAI_SA), errno(Errno::ENOENT));
}

fn one_entry() -> List {
    let mut list = List::default();
    list.push(Entry::default()).unwrap();
    list
}

#[test]
fn result_is_taken_once() {
    let mut pending = Pending::default();
    pending.begin().unwrap();
    assert_eq!(pending.take().err(), Some(Errno::ENOENT));
    assert!(matches!(pending, Pending::Started));
    pending.finish(one_entry());
    assert!(!pending.take().unwrap().is_empty());
    assert_eq!(pending.take().err(), Some(Errno::ENOENT));
    pending.begin().unwrap();
}

#[test]
fn one_at_a_time() {
    let mut pending = Pending::default();
    pending.begin().unwrap();
    assert_eq!(pending.begin(), Err(Errno::EBUSY));
    pending.finish(one_entry());
    assert_eq!(pending.begin(), Err(Errno::EBUSY));
}

#[test]
fn another_look_up_may_follow_a_failure() {
    let mut pending = Pending::default();
    pending.begin().unwrap();
    pending.fail();
    assert_eq!(pending.take().err(), Some(Errno::ENOENT));
    pending.begin().unwrap();
}

#[test]
fn late_result_is_freed() {
    let mut pending = Pending::default();
    pending.finish(one_entry());
    assert_eq!(pending.take().err(), Some(Errno::ENOENT));
}

#[test]
fn sources() {
    let choose = service_of_sa;
    let (node, service) = (Some(c"node"), Some(c"1"));
    assert_eq!(choose(0, node, service), Ok(None));
    assert_eq!(choose(RAI_DNS, None, None), Ok(None));
    assert_eq!(choose(RAI_SA, None, service), Ok(service));
    assert_eq!(choose(RAI_SA, None, None), Err(Errno::EINVAL));
    assert_eq!(choose(RAI_SA, node, None), Err(Errno::ENOTSUP));
    assert_eq!(choose(RAI_SA | RAI_DNS, None, None), Err(Errno::ENOTSUP));
    assert_eq!(choose(RAI_SA | RAI_DNS, node, service), Err(Errno::ENOTSUP));
}

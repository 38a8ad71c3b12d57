//! Property tests: any events in any order.

use proptest::prelude::*;

use super::*;
use crate::proto::requests::PEER_REQUEST_LIFETIME_MS;

#[derive(Clone, Debug)]
enum Step {
    Add(u8, u16, bool),
    Query(u8, u16),
    Remove(u8, u16),
    Restore(u8, u16),
    Listed(u32),
    Overrun,
    Ask(u8, u16, u64),
    Answer(bool, u8),
    Time(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..3, 1u16..4, any::<bool>()).prop_map(|(host, port, map)| Step::Add(host, port, map)),
        4 => (0u8..3, 1u16..4).prop_map(|(host, port)| Step::Query(host, port)),
        6 => (0u8..3, 1u16..4).prop_map(|(host, port)| Step::Remove(host, port)),
        1 => (0u8..3, 1u16..4).prop_map(|(host, port)| Step::Restore(host, port)),
        1 => (0u32..3).prop_map(Step::Listed),
        1 => Just(Step::Overrun),
        3 => (0u8..3, 1u16..4, 0u64..3).prop_map(|(host, port, handle)| Step::Ask(host, port, handle)),
        3 => (any::<bool>(), any::<u8>()).prop_map(|(accept, which)| Step::Answer(accept, which)),
        3 => (0u64..20_000).prop_map(Step::Time),
    ];
    proptest::collection::vec(step, 1..120)
}

proptest! {
    /// The bound ports are those that the mappings need, each datagram sent answers a received one
    /// or belongs to a query, and nothing is left after the kernel has removed all mappings.
    #[test]
    fn any_order_of_events(steps in steps()) {
        let mut world = World::registered();
        let at = |host: u8, port: u16| format!("{}:{port}", if host == 0 { "0.0.0.0".into() } else { format!("10.0.0.{host}") });
        let mut requests = Vec::new();
        for step in steps {
            let out = match step {
                Step::Add(host, port, map) => {
                    let flags = if map { 0 } else { IWPM_FLAGS_NO_PORT_MAP };
                    world.kernel_sends(RDMA_NL_IWPM_ADD_MAPPING, KernelMessage::Add { local: address(&at(host, port)), flags })
                }
                Step::Query(host, port) => world.query(&at(host, port), "10.0.0.2:9000"),
                Step::Remove(host, port) => world.remove(&at(host, port)),
                Step::Restore(host, port) => world.restore(&at(host, port), &at(host, 50_000 + port)),
                Step::Listed(number) => world.kernel_sends(RDMA_NL_IWPM_MAPINFO_NUM, KernelMessage::MapInfoNumber(number)),
                Step::Overrun => { world.engine.overrun(world.now); world.act() }
                Step::Ask(host, port, handle) => {
                    let out = world.udp(Socket::Service, "10.0.0.9:5", peer_request(&at(host, port), handle));
                    prop_assert_eq!(out.iter().filter(|out| matches!(out, Out::Send(..))).count(), 1);
                    out
                }
                Step::Answer(accept, which) => {
                    let kind = if accept { Kind::Accept } else { Kind::Reject };
                    let request = requests.get(usize::from(which) % requests.len().max(1)).copied();
                    let request: Message = request.unwrap_or(peer_request("10.0.0.1:1", 4));
                    let out = world.udp(Socket::Client, PEER, request.answer(kind));
                    prop_assert!(out.iter().filter(|out| matches!(out, Out::Send(..))).count() <= 1);
                    out
                }
                Step::Time(more) => world.at(world.now + more),
            };
            requests.extend(out.iter().filter_map(|out| match out {
                Out::Send(Socket::Client, _, message) if message.kind == Kind::Request => Some(*message),
                _ => None,
            }));
            let bound = world.engine.mappings.iter().filter(|mapping| mapping.bound).count();
            prop_assert_eq!(bound, world.open.len());
            prop_assert!(world.engine.mappings.iter().all(|mapping| mapping.references > 0));
        }
        for (host, port) in (0..3).flat_map(|host| (1..4).map(move |port| (host, port))) {
            for _ in 0..240 {
                world.remove(&at(host, port));
            }
        }
        world.at(world.now + PEER_REQUEST_LIFETIME_MS);
        world.at(world.now + PEER_REQUEST_LIFETIME_MS);
        prop_assert_eq!((world.engine.mappings(), world.open.len(), world.engine.deadline()), (0, 0, None));
    }

    #[test]
    fn any_messages_of_the_kernel(datagrams in proptest::collection::vec((0u16..10, proptest::collection::vec(any::<u8>(), 0..200)), 0..30)) {
        let mut world = World::registered();
        for (op, bytes) in datagrams {
            let mut datagram = netlink::emit(Header { client: RDMA_NL_IWCM, op, seq: 1 }, 0, &[]);
            datagram.extend(&bytes);
            let length = datagram.len() as u32;
            datagram[..4].copy_from_slice(&length.to_ne_bytes());
            for message in messages(&datagram) {
                world.engine.kernel(message, 0);
                world.act();
            }
        }
    }
}

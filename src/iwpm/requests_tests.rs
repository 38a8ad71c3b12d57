use super::*;

const HEADER: Header = Header { client: 2, op: 2, seq: 9 };

fn address(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn from_to(local: &str, remote: &str, now: u64) -> Query {
    let local = address(local);
    let mut mapped = local;
    mapped.set_port(40_000);
    let mapping = Mapping {
        local,
        mapped,
        owner: 2,
        flags: 0,
        id: PortId(1),
        kept: true,
        references: 1,
        owed: 0,
        removals: 0,
        touched: 0,
        listed: (0, 0),
    };
    Query::new(HEADER, &mapping, address(remote), now)
}

fn query(now: u64) -> Query {
    from_to("10.0.0.1:8000", "10.0.0.2:9000", now)
}

/// Numbers one after the other, from 1.
fn counting() -> impl FnMut() -> u64 {
    let mut last = 0;
    move || {
        last += 1;
        last
    }
}

#[test]
fn ten_times_in_ten_seconds() {
    let (mut queries, mut random) = (Queries::default(), counting());
    assert!(queries.add(query(5), &mut random).is_some());
    let mut sent = 1;
    loop {
        let now = queries.deadline().unwrap();
        assert!(queries.due(now - 1).is_none());
        match queries.due(now) {
            Some(Due::Again(to, message)) => {
                assert_eq!((to, message.handle), (address("10.0.0.2:3935"), 1));
                sent += 1;
            }
            Some(Due::Failed(query)) => {
                assert_eq!((now, sent, query.header), (5 + LIFE, 10, HEADER));
                break;
            }
            None => panic!("nothing is due"),
        }
        assert!(queries.due(now).is_none());
    }
    assert!(queries.is_empty() && queries.deadline().is_none());
}

#[test]
fn after_a_long_sleep_there_is_no_burst() {
    let (mut queries, mut random) = (Queries::default(), counting());
    queries.add(query(0), &mut random);
    assert!(matches!(queries.due(5 * AGAIN), Some(Due::Again(..))));
    assert!(queries.due(5 * AGAIN).is_none());
    assert!(matches!(queries.due(100 * AGAIN), Some(Due::Failed(_))));
}

#[test]
fn only_who_was_asked_answers_and_only_what_was_asked() {
    let (mut queries, mut random) = (Queries::default(), counting());
    let sent = queries.add(query(0), &mut random).unwrap();
    let accept = sent.answer(Kind::Accept);
    let peer = address("10.0.0.2:3935");
    let guessed = Message { handle: sent.handle + 1, ..accept };
    let other = Message { cp: accept.ap, ..accept };
    for (from, answer) in
        [(address("10.0.0.3:3935"), accept), (address("10.0.0.2:3936"), accept), (peer, guessed), (peer, other)]
    {
        assert!(queries.answered_by(from, &answer).is_none(), "{from} {answer:?}");
    }
    let query = queries.answered_by(peer, &accept).unwrap();
    assert!(!query.answered);
    query.answered = true;
    assert!(queries.due(AGAIN).is_none(), "what is answered is not sent again");
    assert!(queries.answered_by(peer, &accept).is_some_and(|query| query.answered), "its answer may come again");
    assert!(queries.due(LIFE).is_none());
    assert!(queries.due(LIFE + AGAIN).is_none());
    assert!(queries.is_empty());
}

#[test]
fn queries_are_bounded_and_their_numbers_differ() {
    let mut queries = Queries::default();
    // The worst generator there is.
    let mut random = || 0;
    for _ in 0..1000 {
        assert!(queries.add(query(0), &mut random).is_some());
    }
    assert_eq!(queries.len(), 1000);
    let mut random = counting();
    for _ in 1000..MOST_QUERIES {
        queries.add(query(0), &mut random);
    }
    assert!(queries.add(query(0), &mut random).is_none());
    assert_eq!(queries.len(), MOST_QUERIES);
}

#[test]
fn a_link_local_peer_is_on_our_link() {
    assert_eq!(from_to("[fe80::1%7]:1", "[fe80::2]:3", 0).to(), address("[fe80::2%7]:3935"));
    assert_eq!(from_to("[fd00::1]:1", "[fd00::2]:3", 0).to(), address("[fd00::2]:3935"));
}

fn question(handle: u64) -> Message {
    Message { handle, ..query(0).message }
}

#[test]
fn the_kernel_is_told_once_of_a_question() {
    let (mut asked, from) = (Asked::default(), address("10.0.0.9:5"));
    assert_eq!(asked.take(from, &question(1), 0), Asking::New);
    assert_eq!(asked.take(from, &question(1), REMEMBERED - 1), Asking::Known);
    // Nobody can keep another one's question from the kernel.
    assert_eq!(asked.take(address("10.0.0.8:5"), &question(1), 1), Asking::New);
    assert_eq!(asked.take(from, &question(1), REMEMBERED), Asking::New);
    assert_eq!(asked.deadline(), Some(REMEMBERED + 1));
    asked.forget(3 * REMEMBERED);
    assert!(asked.is_empty() && asked.by_host.is_empty() && asked.deadline().is_none());
}

/// The kernel may keep each for ever: what matters is how many there are in minutes.
#[test]
fn what_the_kernel_is_told_is_bounded() {
    const HOUR: u64 = 3_600_000;
    let from = |host: u32| SocketAddr::new(IpAddr::V4((0x0b00_0000 + host).into()), 5);
    let told = |senders: u32| {
        let mut asked = Asked::default();
        let ask = |handle: u64| asked.take(from(handle as u32 % senders), &question(handle), handle * 10);
        (0..HOUR / 10).map(ask).filter(|&asking| asking == Asking::New).count()
    };
    let rounds = (HOUR / REMEMBERED) as usize;
    assert_eq!(told(1), rounds * MAX_ASKED_BY_HOST as usize);
    assert_eq!(told(10_000), rounds * MAX_ASKED);
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut asked = Asked::default();
    let most = u64::from(MAX_ASKED_BY_HOST);
    for handle in 0..2 * most {
        let expected = if handle < most { Asking::New } else { Asking::TooMany };
        assert_eq!(asked.take(address("10.0.0.9:5"), &question(handle), 0), expected);
    }
    assert_eq!(asked.take(address("10.0.0.8:5"), &question(0), 0), Asking::New, "another host");
    for host in 0..MAX_ASKED as u32 * 2 {
        asked.take(SocketAddr::new(IpAddr::V4((0x0b00_0000 + host).into()), 5), &question(1), 0);
    }
    assert_eq!(asked.len(), MAX_ASKED);
    assert_eq!(asked.take(address("10.0.0.9:5"), &question(0), 0), Asking::Known, "although it is full");
    assert_eq!(asked.take(address("10.0.0.9:5"), &question(1), REMEMBERED), Asking::New);
    assert_eq!(asked.len(), 1);
}

#[test]
fn a_network_of_ipv6_is_one_host() {
    let told = |network: &str| {
        let mut asked = Asked::default();
        let from = |number: u64| address(&format!("[{network}::{number:x}]:5"));
        let ask = |number| asked.take(from(number), &question(number), 0);
        let told = (0..2 * u64::from(MAX_ASKED_BY_HOST)).map(ask).filter(|&asking| asking == Asking::New).count();
        asked.forget(REMEMBERED);
        assert!(asked.is_empty() && asked.by_host.is_empty());
        told
    };
    assert_eq!(told("fd00:1"), MAX_ASKED_BY_HOST as usize);
    assert_eq!(told("fe80"), 2 * MAX_ASKED_BY_HOST as usize, "all hosts of a link");
}

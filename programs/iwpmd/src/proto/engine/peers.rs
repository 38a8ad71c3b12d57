//! Messages from other hosts: requests, and answers to queries.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use nix::syslog::Severity::LOG_INFO;

use super::{Action, Engine, Socket};
use crate::proto::netlink::{ErrorCode, Value};
use crate::proto::requests::{Due, Query, Recorded};
use crate::proto::uapi::{RDMA_NL_IWPM_QUERY_MAPPING, RDMA_NL_IWPM_REMOTE_INFO};
use crate::proto::wire::{Kind, Message, Peer};

impl Engine {
    /// Handles a datagram received by one of the UDP sockets. `to` is the local address to which
    /// the datagram was sent.
    pub fn udp(&mut self, socket: Socket, from: SocketAddr, to: Option<IpAddr>, bytes: &[u8], now: u64) {
        let known = Message::parse(bytes, from.is_ipv6()).is_some_and(|message| match (socket, message.kind) {
            (Socket::Service, Kind::Request) => self.answer_request(&message, from, to, now),
            // A repeated request is answered again, so nothing waits for an acknowledgement.
            (Socket::Service, Kind::Ack) => true,
            (Socket::Client, Kind::Accept | Kind::Reject) => self.query_answered(&message, from),
            _ => false,
        });
        if !known {
            self.counts.dropped += 1;
        }
    }

    fn answer_request(&mut self, request: &Message, from: SocketAddr, to: Option<IpAddr>, now: u64) -> bool {
        let Some(mapped_cp) = request.mapped_cp else { return false };
        let mut answer = request.answer(Kind::Reject);
        if let Some(mapping) = self.mappings.for_peer(request.ap) {
            answer = Message { ap: mapping.answer(request.ap), ..request.answer(Kind::Accept) };
            self.counts.accepted += 1;
            let (owner, local, mapped) = (mapping.owner, mapping.local, mapping.mapped);
            match self.peer_requests.record(from, request, now) {
                // The kernel needs the report before the peer connects.
                Recorded::New => {
                    let addresses = [local, address(request.cp, from), mapped, address(mapped_cp, from)];
                    self.report(owner, RDMA_NL_IWPM_REMOTE_INFO, 0, addresses, 0);
                }
                Recorded::Known => {}
                Recorded::TooMany => self.counts.not_reported += 1,
            }
        } else {
            self.counts.rejected += 1;
        }
        self.send(Socket::Service, to, from, &answer);
        true
    }

    /// Reports the addresses of a connection to the kernel: local and remote, unmapped and mapped.
    fn report(&mut self, client: u8, op: u16, seq: u32, addresses: [SocketAddr; 4], code: u16) {
        let [local, remote, mapped_local, mapped_remote] = addresses.map(Value::Address);
        let values = [Value::U32(seq), local, remote, mapped_local, mapped_remote, Value::U16(code)];
        self.send_to_kernel(client, op, &values);
    }

    /// Queries another host on behalf of the kernel.
    pub(super) fn ask(&mut self, query: Query) {
        let to = query.to();
        match self.queries.add(query.clone(), &mut self.random) {
            Some(message) => self.send(Socket::Client, None, to, &message),
            None => {
                self.release(&query);
                self.error(query.header, ErrorCode::CreateMapping);
            }
        }
    }

    /// Handles an answer: reports a query's first answer to the kernel, and acknowledges each
    /// accept. Returns whether the answer belongs to a query.
    fn query_answered(&mut self, answer: &Message, from: SocketAddr) -> bool {
        let Some(query) = self.queries.answered_by(from, answer) else { return false };
        let is_accept = answer.kind == Kind::Accept;
        if !query.answered {
            query.answered = true;
            let (header, remote) = (query.header, query.remote);
            let (mapped_remote, code) =
                if is_accept { (address(answer.ap, remote), 0) } else { (remote, ErrorCode::QueryRejected as u16) };
            let addresses = [query.local, remote, query.mapped, mapped_remote];
            self.counts.answered += 1;
            self.report(header.client, RDMA_NL_IWPM_QUERY_MAPPING, header.seq, addresses, code);
        }
        if is_accept {
            self.send(Socket::Client, None, from, &answer.answer(Kind::Ack));
        }
        true
    }

    /// Resends queries, and reports those that timed out.
    pub(super) fn repeat_queries(&mut self, now: u64) {
        while let Some(due) = self.queries.due(now) {
            match due {
                Due::Resend(to, message) => self.send(Socket::Client, None, to, &message),
                Due::TimedOut(query) => {
                    self.counts.unanswered += 1;
                    let (local, remote) = (query.local, query.remote);
                    self.log(
                        LOG_INFO,
                        format!("no port mapper answers for {}, port {}, to {local}", remote.ip(), remote.port()),
                    );
                    self.release(&query);
                    self.error(query.header, ErrorCode::UnknownMapping);
                }
            }
        }
    }

    fn send(&mut self, socket: Socket, from: Option<IpAddr>, to: SocketAddr, message: &Message) {
        self.actions.push_back(Action::Send { socket, from, to, message: message.emit() });
    }
}

/// Returns a peer's address for the kernel, with the scope of `like` if the address is link-local.
fn address(peer: Peer, like: SocketAddr) -> SocketAddr {
    match (peer.ip, like) {
        (IpAddr::V6(ip), SocketAddr::V6(like)) if ip.is_unicast_link_local() => {
            SocketAddrV6::new(ip, peer.port, 0, like.scope_id()).into()
        }
        _ => SocketAddr::new(peer.ip, peer.port),
    }
}

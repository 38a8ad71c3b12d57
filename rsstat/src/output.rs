//! The two formats: columns for people, JSON for programs.

use std::io::{self, IsTerminal, Write};

use serde_json::{Value, json};

use crate::sock_diag::Counters;
use crate::socket::{Details, Socket, State};

/// Version of the JSON format: it changes when something is renamed or removed.
const SCHEMA: u32 = 1;

/// Clears a terminal before the next list; a file gets an empty line.
pub fn clear(out: &mut impl Write) -> io::Result<()> {
    if io::stdout().is_terminal() { write!(out, "\x1b[H\x1b[2J") } else { writeln!(out) }
}

/// Writes a headline and a line for each socket.
pub fn text(out: &mut impl Write, sockets: &[Socket], extended: bool) -> io::Result<()> {
    writeln!(
        out,
        "{:<7} {:<4} {:>9} {:>9} {:>7}  {:<28} {:<28} {:<10} {:>4} Process",
        "State", "Way", "Recv-Q", "Send-Q", "Credits", "Local", "Peer", "Device", "FD"
    )?;
    for socket in sockets {
        line(out, socket)?;
        if let Some(details) = socket.details.as_ref().filter(|_| extended) {
            extension(out, socket.state, details)?;
        }
        if let Some(counters) = socket.tcp.as_ref().filter(|_| extended) {
            tcp_extension(out, counters)?;
        }
    }
    Ok(())
}

fn line(out: &mut impl Write, socket: &Socket) -> io::Result<()> {
    let details = socket.details.as_ref();
    let credits = details.filter(|_| matches!(socket.state, State::Connected | State::Closing));
    let credits = credits.map_or_else(|| "-".to_owned(), |details| details.credits.to_string());
    let device = details.filter(|details| !details.device.is_empty());
    let device = device.map_or_else(|| "-".to_owned(), |details| format!("{}/{}", details.device, details.port));
    writeln!(
        out,
        "{:<7} {:<4} {:>9} {:>9} {:>7}  {:<28} {:<28} {:<10} {:>4} {}/{}",
        socket.state.name(),
        socket.way.name(),
        socket.receive_queue,
        socket.send_queue,
        credits,
        socket.local,
        socket.peer,
        device,
        socket.fd,
        socket.pid,
        socket.command
    )
}

fn extension(out: &mut impl Write, state: State, details: &Details) -> io::Result<()> {
    if state == State::Listening {
        return writeln!(out, "        backlog {}", details.backlog);
    }
    writeln!(
        out,
        "        sent {} in {} messages, received {} in {} messages, {} waits to send, buffers {} and {}, QP {:#08x}",
        details.sent_bytes,
        details.sent_messages,
        details.received_bytes,
        details.received_messages,
        details.send_waits,
        details.send_buffer,
        details.receive_buffer,
        details.qp_number
    )
}

fn tcp_extension(out: &mut impl Write, counters: &Counters) -> io::Result<()> {
    let bytes = counters.bytes.map(|(sent, received)| format!("sent {sent}, received {received}"));
    let buffers = counters.buffers.map(|(send, receive)| format!("buffers {send} and {receive}"));
    match [bytes, buffers].into_iter().flatten().collect::<Vec<_>>() {
        parts if parts.is_empty() => Ok(()),
        parts => writeln!(out, "        {}", parts.join(", ")),
    }
}

/// Writes one JSON object, in one line.
pub fn json(out: &mut impl Write, sockets: &[Socket]) -> io::Result<()> {
    let sockets: Vec<Value> = sockets.iter().map(object).collect();
    writeln!(out, "{}", json!({ "schema": SCHEMA, "sockets": sockets }))
}

fn object(socket: &Socket) -> Value {
    let mut object = json!({
        "pid": socket.pid,
        "command": socket.command,
        "fd": socket.fd,
        "state": socket.state.name(),
        "way": socket.way.name(),
        "local": socket.local.to_string(),
        "peer": socket.peer.to_string(),
        "receive_queue": socket.receive_queue,
        "send_queue": socket.send_queue,
    });
    if let Some(details) = &socket.details {
        object["device"] = json!(details.device);
        object["port"] = json!(details.port);
        object["qp_number"] = json!(details.qp_number);
        object["backlog"] = json!(details.backlog);
        object["sent_bytes"] = json!(details.sent_bytes);
        object["sent_messages"] = json!(details.sent_messages);
        object["received_bytes"] = json!(details.received_bytes);
        object["received_messages"] = json!(details.received_messages);
        object["send_waits"] = json!(details.send_waits);
        object["credits"] = json!(details.credits);
        object["send_buffer"] = json!(details.send_buffer);
        object["receive_buffer"] = json!(details.receive_buffer);
    }
    let counters = socket.tcp.unwrap_or_default();
    if let Some((sent, received)) = counters.bytes {
        object["sent_bytes"] = json!(sent);
        object["received_bytes"] = json!(received);
    }
    if let Some((send, receive)) = counters.buffers {
        object["send_buffer"] = json!(send);
        object["receive_buffer"] = json!(receive);
    }
    object
}

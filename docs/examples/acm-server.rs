//! The ACM server of the tests as a program, to run real programs against it.
//!
//! `acm-server [--mode MODE] [--tcp] [--directory DIR]` listens on DIR/ibacm.sock, or with --tcp on a port of
//! 127.0.0.1 whose number it writes to DIR/ibacm.port; DIR is /run unless given. Each request is printed.

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use server::{Mode, Server};

#[path = "../../tests/acm_server.rs"]
#[allow(dead_code, missing_docs, reason = "the tests use more of it")]
mod server;

struct Options {
    mode: Mode,
    tcp: bool,
    directory: PathBuf,
}

fn options() -> Result<Options, String> {
    let mut options = Options { mode: Mode::Good, tcp: false, directory: PathBuf::from("/run") };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--mode" => {
                let name = value()?;
                options.mode = Mode::named(&name).ok_or_else(|| format!("no mode {name}; there are {}", modes()))?;
            }
            "--tcp" => options.tcp = true,
            "--directory" => options.directory = PathBuf::from(value()?),
            _ => return Err(format!("unknown argument {arg}")),
        }
    }
    Ok(options)
}

fn modes() -> String {
    Mode::ALL.map(|(name, _)| name).join(" ")
}

/// One line of hexadecimal digits.
fn print(request: &[u8]) {
    let words: Vec<String> =
        request.chunks(4).map(|word| word.iter().map(|byte| format!("{byte:02x}")).collect()).collect();
    let _ = writeln!(io::stdout(), "request {}", words.join(" "));
}

fn run(options: &Options) -> io::Result<()> {
    let watch = Box::new(print);
    let server = if options.tcp {
        Server::tcp_watched(&options.directory.join("ibacm.port"), options.mode, watch)?
    } else {
        Server::unix_watched(&options.directory.join("ibacm.sock"), options.mode, watch)?
    };
    writeln!(io::stdout(), "listening")?;
    server.serve();
    Ok(())
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options).map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "acm-server: {error}");
            ExitCode::FAILURE
        }
    }
}

//! The findings, and how they are printed.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::codes::{Check, Problem, Warning};
use crate::options::Options;

/// Version of the JSON format: it changes when something is renamed or removed.
const SCHEMA: u32 = 1;
/// The time that a finding took is printed if it is at least this long.
const SLOW: Duration = Duration::from_millis(100);

/// State of a finding, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    NotApplicable,
    Ok,
    Warning,
    Problem,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::NotApplicable => "not-applicable",
            State::Ok => "ok",
            State::Warning => "warning",
            State::Problem => "problem",
        }
    }

    fn label(self) -> &'static str {
        match self {
            State::NotApplicable => "-",
            State::Ok => "ok",
            State::Warning => "warning",
            State::Problem => "PROBLEM",
        }
    }
}

/// Returns a number and a noun, in the plural unless the number is 1.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Removes the error numbers that Rust appends to messages, such as " (os error 2)".
fn without_numbers(mut text: String) -> String {
    while let Some(start) = text.find(" (os error ") {
        let end = text[start..].find(')').map_or(text.len(), |len| start + len + 1);
        text.replace_range(start..end, "");
    }
    text
}

#[derive(Debug)]
struct Finding {
    /// One of [`crate::codes`]: the name of the check. For warnings and problems, a dot and what
    /// was found follow.
    code: &'static str,
    state: State,
    text: String,
    advice: Option<String>,
    /// What the finding is about: a port (DEVICE/PORT), a device, or the whole machine (`None`).
    about: Option<String>,
    /// The time since the previous finding.
    took: Duration,
}

impl Finding {
    fn check(&self) -> &'static str {
        self.code.split('.').next().unwrap_or_default()
    }

    /// Returns the device and the number of the port that the finding is about.
    fn device_and_port(&self) -> (Option<&str>, Option<u32>) {
        let Some(name) = self.about.as_deref() else { return (None, None) };
        match name.split_once('/') {
            Some((device, number)) => (Some(device), number.parse().ok()),
            None => (Some(name), None),
        }
    }

    fn is_shown(&self, quiet: bool) -> bool {
        !quiet || self.state >= State::Warning
    }

    fn print(&self) {
        let seconds = if self.took < SLOW { String::new() } else { format!(" ({:.1} s)", self.took.as_secs_f32()) };
        println!("{:<8} {:<14} {}{seconds}", self.state.label(), self.check(), self.text);
        if let Some(advice) = &self.advice {
            println!("{:<8} {:<14} -> {advice}", "", "");
        }
    }
}

/// The list of findings.
#[derive(Debug)]
pub struct Report {
    findings: Vec<Finding>,
    /// `Some` if findings are printed as they are added: all findings (false), or only warnings and
    /// problems (true).
    quiet: Option<bool>,
    /// When the last finding was added.
    last: Instant,
    /// What the next findings are about.
    about: Option<String>,
}

impl Default for Report {
    fn default() -> Report {
        Report { findings: Vec::new(), quiet: None, last: Instant::now(), about: None }
    }
}

impl Report {
    /// Returns an empty report for the format that the options request. In the text format,
    /// findings are printed as they are added.
    pub fn new(options: &Options) -> Report {
        let is_text = !options.json && !options.monitor;
        Report { quiet: is_text.then_some(options.quiet), ..Report::default() }
    }

    /// Sets what the findings are about until the next call: a port (DEVICE/PORT), a device, or the
    /// whole machine (`None`).
    pub fn about(&mut self, name: Option<&str>) {
        self.about = name.map(str::to_owned);
    }

    /// Adds a finding without a problem.
    pub fn ok(&mut self, check: Check, text: impl Into<String>) {
        self.add(check.code(), State::Ok, text.into(), None);
    }

    /// Adds a check that does not apply.
    pub fn not_applicable(&mut self, check: Check, text: impl Into<String>) {
        self.add(check.code(), State::NotApplicable, text.into(), None);
    }

    /// Adds a possible problem, with advice.
    pub fn warning(&mut self, code: Warning, text: impl Into<String>, advice: impl Into<String>) {
        self.add(code.code(), State::Warning, text.into(), Some(advice.into()));
    }

    /// Adds a problem, with advice.
    pub fn problem(&mut self, code: Problem, text: impl Into<String>, advice: impl Into<String>) {
        self.add(code.code(), State::Problem, text.into(), Some(advice.into()));
    }

    fn add(&mut self, code: &'static str, state: State, text: String, advice: Option<String>) {
        let took = self.last.elapsed();
        self.last += took;
        let finding = Finding { code, state, text: without_numbers(text), advice, about: self.about.clone(), took };
        if self.quiet.is_some_and(|quiet| finding.is_shown(quiet)) {
            finding.print();
        }
        self.findings.push(finding);
    }

    /// Returns the text of the first problem that prevents connections through a port (DEVICE/PORT)
    /// or a device: a problem of the port, its device or the whole machine. Callers do not report
    /// the consequences of this problem.
    pub fn cause(&self, name: &str) -> Option<&str> {
        let concerns =
            |about: &str| name.strip_prefix(about).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let is_cause = |f: &&Finding| f.state == State::Problem && f.about.as_deref().is_none_or(concerns);
        self.findings.iter().find(is_cause).map(|finding| finding.text.as_str())
    }

    /// Returns the number of findings.
    pub fn len(&self) -> usize {
        self.findings.len()
    }

    /// Returns the worst state of all findings.
    pub fn worst(&self) -> State {
        self.findings.iter().map(|finding| finding.state).max().unwrap_or(State::NotApplicable)
    }

    /// Returns the worst state of one check.
    #[cfg(test)]
    pub fn worst_of(&self, check: &str) -> State {
        let findings = self.findings.iter().filter(|finding| finding.check() == check);
        findings.map(|finding| finding.state).max().unwrap_or(State::NotApplicable)
    }

    fn count(&self, state: State) -> usize {
        self.findings.iter().filter(|finding| finding.state == state).count()
    }

    fn counts(&self) -> String {
        let [warnings, problems] = [(State::Warning, "warning"), (State::Problem, "problem")]
            .map(|(state, noun)| count(self.count(state), noun));
        format!("{} ok, {warnings}, {problems}", self.count(State::Ok))
    }

    /// Prints the rest of the report: the counts in the text format, everything in other formats.
    pub fn finish(&self, options: &Options) {
        if options.monitor {
            println!("{}", self.line());
        } else if options.json {
            let shown = self.findings.iter().filter(|finding| finding.is_shown(options.quiet));
            println!("{:#}", self.json(shown));
        } else if !options.quiet {
            println!("{}", self.counts());
        }
    }

    /// Returns the report in one line, for monitoring programs.
    fn line(&self) -> String {
        let word = match self.worst() {
            State::Problem => "CRITICAL",
            State::Warning => "WARNING",
            State::Ok | State::NotApplicable => "OK",
        };
        let worst = self.worst().max(State::Warning);
        let texts: Vec<&str> = self.findings.iter().filter(|f| f.state == worst).map(|f| f.text.as_str()).collect();
        let counts = self.counts();
        let texts = if texts.is_empty() { counts } else { format!("{counts}: {}", texts.join("; ")) };
        // Monitoring programs parse text after a `|` as performance data.
        format!("RDMA {word} - {}", texts.replace(['|', '\n'], " "))
    }

    fn json<'a>(&self, findings: impl Iterator<Item = &'a Finding>) -> Value {
        let list: Vec<Value> = findings
            .map(|finding| {
                let (device, port) = finding.device_and_port();
                json!({
                    "check": finding.check(),
                    "code": finding.code,
                    "device": device,
                    "port": port,
                    "milliseconds": finding.took.as_millis() as u64,
                    "state": finding.state.name(),
                    "text": finding.text,
                    "advice": finding.advice,
                })
            })
            .collect();
        json!({
            "schema": SCHEMA,
            "state": self.worst().name(),
            "ok": self.count(State::Ok),
            "warnings": self.count(State::Warning),
            "problems": self.count(State::Problem),
            "checks": list,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_counts() {
        let mut report = Report::default();
        assert_eq!(report.worst(), State::NotApplicable);
        report.ok(Check::Modules, "good");
        assert_eq!(report.line(), "RDMA OK - 1 ok, 0 warnings, 0 problems");
        report.warning(Warning::MemlockLittle, "hm", "do");
        assert_eq!(report.worst(), State::Warning);
        assert_eq!(report.line(), "RDMA WARNING - 1 ok, 1 warning, 0 problems: hm");
        report.problem(Problem::ModulesMissing, "bad \"x\"", "do");
        report.ok(Check::Ports, "good");
        assert_eq!(report.worst(), State::Problem);
        assert_eq!(report.line(), "RDMA CRITICAL - 2 ok, 1 warning, 1 problem: bad \"x\"");
        let json = report.json(report.findings.iter());
        assert_eq!((&json["state"], &json["ok"], &json["problems"]), (&json!("problem"), &json!(2), &json!(1)));
        assert_eq!(json["checks"][2]["text"], json!("bad \"x\""));
        assert_eq!(json["checks"][2]["device"], Value::Null);
        report.about(Some("mlx5_0/2"));
        report.problem(Problem::PortsInactive, "no cable", "do");
        let json = report.json(report.findings.iter().skip(4));
        let found = &json["checks"][0];
        assert_eq!((&found["check"], &found["code"]), (&json!("ports"), &json!("ports.inactive")));
        assert_eq!((&found["device"], &found["port"]), (&json!("mlx5_0"), &json!(2)));
        report.about(Some("mlx5_1"));
        report.warning(Warning::DevicesNoGuid, "no GUID", "do");
        let json = report.json(report.findings.iter().skip(5));
        assert_eq!((&json["checks"][0]["device"], &json["checks"][0]["port"]), (&json!("mlx5_1"), &Value::Null));
    }

    #[test]
    fn a_problem_is_the_cause_for_what_it_concerns() {
        let mut report = Report::default();
        report.warning(Warning::MemlockLittle, "little", "do");
        report.about(Some("mlx5_1/2"));
        report.problem(Problem::PortsInactive, "no cable", "do");
        report.about(Some("mlx5_0"));
        report.problem(Problem::LibraryDeviceNotFound, "no driver", "do");
        report.about(None);
        let names = ["mlx5_0", "mlx5_0/1", "mlx5_1", "mlx5_1/1", "mlx5_1/2", "mlx5_1/20", "mlx5_01/1", ""];
        let causes = names.map(|name| report.cause(name));
        assert_eq!(causes, [Some("no driver"), Some("no driver"), None, None, Some("no cable"), None, None, None]);
        report.problem(Problem::ModulesMissing, "no module", "do");
        assert_eq!((report.cause(""), report.cause("mlx5_1/1")), (Some("no module"), Some("no module")));
    }

    #[test]
    fn errors_have_no_numbers() {
        let error = std::io::Error::from_raw_os_error(libc::ENOENT);
        let text = format!("a cannot be read: {error}; nothing listens ({error}): end");
        let wanted = "a cannot be read: No such file or directory; nothing listens (No such file or directory): end";
        assert_eq!(without_numbers(text), wanted);
    }

    /// Returns the keys in the table of the document whose first header cell is `header`.
    fn documented(header: &str) -> Vec<&'static str> {
        let document = include_str!("../../../docs/doctor-codes.md");
        let rows = document.lines().skip_while(|line| !line.starts_with(&format!("| {header} |"))).skip(2);
        let rows = rows.take_while(|line| line.starts_with('|'));
        let mut keys: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
        keys.sort_unstable();
        keys
    }

    fn keys(object: &Value) -> Vec<&str> {
        object.as_object().unwrap().keys().map(String::as_str).collect()
    }

    #[test]
    fn keys_and_states_are_those_of_the_document() {
        let mut report = Report::default();
        report.ok(Check::Modules, "good");
        report.problem(Problem::PortsInactive, "no cable", "do");
        let json = report.json(report.findings.iter());
        assert_eq!(keys(&json), documented("key of the report"));
        for finding in json["checks"].as_array().unwrap() {
            assert_eq!(keys(finding), documented("key of a finding"));
        }
        let mut states = [State::NotApplicable, State::Ok, State::Warning, State::Problem].map(State::name);
        states.sort_unstable();
        assert_eq!(documented("state"), states);
        let version = format!("version of this format: {SCHEMA} |");
        assert!(include_str!("../../../docs/doctor-codes.md").contains(&version), "{version}");
    }
}

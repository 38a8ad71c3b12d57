//! The findings, and how they are printed.

use serde_json::{Value, json};

use crate::options::Options;

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

#[derive(Debug)]
struct Finding {
    check: &'static str,
    state: State,
    text: String,
    advice: Option<String>,
}

/// The list of findings.
#[derive(Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// Adds a finding without a problem.
    pub fn ok(&mut self, check: &'static str, text: impl Into<String>) {
        self.add(check, State::Ok, text.into(), None);
    }

    /// Adds a check that does not apply.
    pub fn not_applicable(&mut self, check: &'static str, text: impl Into<String>) {
        self.add(check, State::NotApplicable, text.into(), None);
    }

    /// Adds a possible problem, with advice.
    pub fn warning(&mut self, check: &'static str, text: impl Into<String>, advice: impl Into<String>) {
        self.add(check, State::Warning, text.into(), Some(advice.into()));
    }

    /// Adds a problem, with advice.
    pub fn problem(&mut self, check: &'static str, text: impl Into<String>, advice: impl Into<String>) {
        self.add(check, State::Problem, text.into(), Some(advice.into()));
    }

    fn add(&mut self, check: &'static str, state: State, text: String, advice: Option<String>) {
        self.findings.push(Finding { check, state, text, advice });
    }

    /// Returns the worst state of all findings.
    pub fn worst(&self) -> State {
        self.findings.iter().map(|finding| finding.state).max().unwrap_or(State::NotApplicable)
    }

    /// Returns the worst state of one check.
    #[cfg(test)]
    pub fn worst_of(&self, check: &str) -> State {
        let findings = self.findings.iter().filter(|finding| finding.check == check);
        findings.map(|finding| finding.state).max().unwrap_or(State::NotApplicable)
    }

    fn count(&self, state: State) -> usize {
        self.findings.iter().filter(|finding| finding.state == state).count()
    }

    /// Prints the report in the format that the options request.
    pub fn print(&self, options: &Options) {
        let is_shown = |finding: &&Finding| !options.quiet || finding.state >= State::Warning;
        if options.monitor {
            println!("{}", self.line());
            return;
        }
        if options.json {
            println!("{:#}", self.json(self.findings.iter().filter(is_shown)));
            return;
        }
        for finding in self.findings.iter().filter(is_shown) {
            println!("{:<8} {:<14} {}", finding.state.label(), finding.check, finding.text);
            if let Some(advice) = &finding.advice {
                println!("{:<8} {:<14} -> {advice}", "", "");
            }
        }
        if !options.quiet {
            let [ok, warnings, problems] = [State::Ok, State::Warning, State::Problem].map(|state| self.count(state));
            println!("{ok} ok, {warnings} warnings, {problems} problems");
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
        let [ok, warnings, problems] = [State::Ok, State::Warning, State::Problem].map(|state| self.count(state));
        let counts = format!("{ok} ok, {warnings} warnings, {problems} problems");
        let texts = if texts.is_empty() { counts } else { format!("{counts}: {}", texts.join("; ")) };
        // Monitoring programs parse text after a bar as performance data.
        format!("RDMA {word} - {}", texts.replace(['|', '\n'], " "))
    }

    fn json<'a>(&self, findings: impl Iterator<Item = &'a Finding>) -> Value {
        let list: Vec<Value> = findings
            .map(|finding| {
                json!({
                    "check": finding.check,
                    "state": finding.state.name(),
                    "text": finding.text,
                    "advice": finding.advice,
                })
            })
            .collect();
        json!({
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
        report.ok("a", "good");
        assert_eq!(report.line(), "RDMA OK - 1 ok, 0 warnings, 0 problems");
        report.warning("b", "hm", "do");
        assert_eq!(report.worst(), State::Warning);
        assert_eq!(report.line(), "RDMA WARNING - 1 ok, 1 warnings, 0 problems: hm");
        report.problem("c", "bad \"x\"", "do");
        report.ok("d", "good");
        assert_eq!(report.worst(), State::Problem);
        assert_eq!(report.line(), "RDMA CRITICAL - 2 ok, 1 warnings, 1 problems: bad \"x\"");
        let json = report.json(report.findings.iter());
        assert_eq!((&json["state"], &json["ok"], &json["problems"]), (&json!("problem"), &json!(2), &json!(1)));
        assert_eq!(json["checks"][2]["text"], json!("bad \"x\""));
    }
}

//! What was found, and how it is shown.

use serde_json::{Value, json};

use crate::options::Options;

/// How something is, the worst last.
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

/// See the module.
#[derive(Debug, Default)]
pub struct Report {
    findings: Vec<Finding>,
}

impl Report {
    /// Something is as it should be.
    pub fn ok(&mut self, check: &'static str, text: impl Into<String>) {
        self.add(check, State::Ok, text.into(), None);
    }

    /// There is nothing to look at.
    pub fn not_applicable(&mut self, check: &'static str, text: impl Into<String>) {
        self.add(check, State::NotApplicable, text.into(), None);
    }

    /// Something may be in the way, and what to do about it.
    pub fn warning(&mut self, check: &'static str, text: impl Into<String>, advice: impl Into<String>) {
        self.add(check, State::Warning, text.into(), Some(advice.into()));
    }

    /// Something is in the way, and what to do about it.
    pub fn problem(&mut self, check: &'static str, text: impl Into<String>, advice: impl Into<String>) {
        self.add(check, State::Problem, text.into(), Some(advice.into()));
    }

    fn add(&mut self, check: &'static str, state: State, text: String, advice: Option<String>) {
        self.findings.push(Finding { check, state, text, advice });
    }

    /// The worst of all.
    pub fn worst(&self) -> State {
        self.findings.iter().map(|finding| finding.state).max().unwrap_or(State::NotApplicable)
    }

    fn count(&self, state: State) -> usize {
        self.findings.iter().filter(|finding| finding.state == state).count()
    }

    /// Prints it as the options say.
    pub fn print(&self, options: &Options) {
        let wanted = |finding: &&Finding| !options.quiet || finding.state >= State::Warning;
        if options.json {
            println!("{:#}", self.json(self.findings.iter().filter(wanted)));
            return;
        }
        for finding in self.findings.iter().filter(wanted) {
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
        report.warning("b", "hm", "do");
        assert_eq!(report.worst(), State::Warning);
        report.problem("c", "bad \"x\"", "do");
        report.ok("d", "good");
        assert_eq!(report.worst(), State::Problem);
        let json = report.json(report.findings.iter());
        assert_eq!((&json["state"], &json["ok"], &json["problems"]), (&json!("problem"), &json!(2), &json!(1)));
        assert_eq!(json["checks"][2]["text"], json!("bad \"x\""));
    }
}

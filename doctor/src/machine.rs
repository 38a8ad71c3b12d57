//! The kernel's side: modules, and the device files that they make.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use crate::report::Report;

/// A module, what shows that it (or its like in the kernel) is there, and what it is for.
const MODULES: [(&str, &str, &str); 3] = [
    ("ib_core", "/sys/class/infiniband", "RDMA devices"),
    ("ib_uverbs", "/sys/class/infiniband_verbs", "verbs for programs"),
    ("rdma_ucm", "/sys/class/misc/rdma_cm", "the connection manager for programs"),
];

pub fn modules(report: &mut Report) {
    for (module, shows, purpose) in MODULES {
        if Path::new(shows).exists() {
            report.ok("modules", format!("the kernel has {module}: {purpose}"));
        } else {
            report.problem(
                "modules",
                format!("the kernel's module {module} is not loaded: {purpose}"),
                how_to_load(module),
            );
        }
    }
}

fn how_to_load(module: &str) -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let folder = format!("/lib/modules/{}", release.trim());
    let Ok(index) = fs::read_to_string(format!("{folder}/modules.dep")) else {
        return format!("{folder} is not there: in a container, load {module} on the host");
    };
    let names = [format!("/{module}.ko"), format!("/{}.ko", module.replace('_', "-"))];
    if index.lines().any(|line| names.iter().any(|name| line.split(':').next().is_some_and(|file| file.contains(name))))
    {
        format!("modprobe {module}; at every boot: echo {module} > /etc/modules-load.d/{module}.conf")
    } else {
        format!("this kernel ({}) has no such module: install the one that comes with more drivers", release.trim())
    }
}

/// Device files: there, and good for this user.
pub fn nodes(report: &mut Report) {
    let mut any = false;
    if Path::new("/sys/class/misc/rdma_cm").exists() {
        any = true;
        node("/dev/infiniband/rdma_cm", report);
    }
    for entry in crate::devices::entries("/sys/class/infiniband_verbs") {
        if entry.starts_with("uverbs") {
            any = true;
            node(&format!("/dev/infiniband/{entry}"), report);
        }
    }
    if !any {
        report.not_applicable("device-files", "there is nothing to have device files for");
    }
}

fn node(path: &str, report: &mut Report) {
    match File::options().read(true).write(true).open(path) {
        Ok(_) => report.ok("device-files", format!("{path} can be opened")),
        Err(error) if error.kind() == ErrorKind::NotFound => report.problem(
            "device-files",
            format!("{path} is missing"),
            "does udev run? In a container, pass the devices on (docker: --device=/dev/infiniband)",
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => report.problem(
            "device-files",
            format!("{path} may not be opened by this user"),
            "it is usually readable and writable for everybody (0666): see the udev rules, or in a container the device cgroup",
        ),
        Err(error) => report.problem("device-files", format!("{path} cannot be opened: {error}"), "see dmesg"),
    }
}

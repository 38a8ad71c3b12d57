//! The kernel's modules, and their device files.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;

use crate::codes::{Check, Problem};
use crate::report::Report;

/// A module, the path that exists if the kernel has it (loaded or built in), and its purpose.
const MODULES: [(&str, &str, &str); 3] = [
    ("ib_core", "/sys/class/infiniband", "RDMA devices"),
    ("ib_uverbs", "/sys/class/infiniband_verbs", "verbs for programs"),
    ("rdma_ucm", "/sys/class/misc/rdma_cm", "the connection manager for programs"),
];

/// Checks the modules.
pub fn modules(report: &mut Report) {
    for (module, path, purpose) in MODULES {
        if Path::new(path).exists() {
            report.ok(Check::Modules, format!("the kernel has {module}: {purpose}"));
        } else {
            report.problem(
                Problem::ModulesMissing,
                format!("the kernel's module {module} is not loaded: {purpose}"),
                how_to_load(module),
            );
        }
    }
}

/// Returns the advice for a module that is not loaded.
fn how_to_load(module: &str) -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let directory = format!("/lib/modules/{}", release.trim());
    let Ok(index) = fs::read_to_string(format!("{directory}/modules.dep")) else {
        return format!("{directory} does not exist: in a container, load {module} on the host");
    };
    let names = [format!("/{module}.ko"), format!("/{}.ko", module.replace('_', "-"))];
    if index.lines().any(|line| names.iter().any(|name| line.split(':').next().is_some_and(|file| file.contains(name))))
    {
        format!("modprobe {module}; at every boot: echo {module} > /etc/modules-load.d/{module}.conf")
    } else {
        format!("this kernel ({}) has no such module: install a kernel package with more drivers", release.trim())
    }
}

/// Checks that the device files exist and that this user can open them.
pub fn nodes(report: &mut Report) {
    let mut found = false;
    if Path::new("/sys/class/misc/rdma_cm").exists() {
        found = true;
        node("/dev/infiniband/rdma_cm", report);
    }
    for entry in crate::devices::entries("/sys/class/infiniband_verbs") {
        if entry.starts_with("uverbs") {
            found = true;
            node(&format!("/dev/infiniband/{entry}"), report);
        }
    }
    if !found {
        report.not_applicable(Check::DeviceFiles, "the kernel has no uverbs device and no connection manager");
    }
}

fn node(path: &str, report: &mut Report) {
    match File::options().read(true).write(true).open(path) {
        Ok(_) => report.ok(Check::DeviceFiles, format!("{path} can be opened")),
        Err(error) if error.kind() == ErrorKind::NotFound => report.problem(
            Problem::DeviceFilesMissing,
            format!("{path} is missing"),
            "is udev running? In a container, pass the devices to it (docker: --device=/dev/infiniband)",
        ),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => report.problem(
            Problem::DeviceFilesPermission,
            format!("{path} may not be opened by this user"),
            "its mode is usually 0666: check the udev rules, or in a container the device cgroup",
        ),
        Err(error) => {
            report.problem(Problem::DeviceFilesError, format!("{path} cannot be opened: {error}"), "see dmesg")
        }
    }
}

//! The kernel's modules, and their device files.

use std::fs::{self, File};
use std::io::{Error, ErrorKind};
use std::path::Path;

use crate::codes::{Check, Problem};
use crate::devices;
use crate::report::Report;

const VERBS: &str = "/sys/class/infiniband_verbs";
const CONNECTION_MANAGER: &str = "/sys/class/misc/rdma_cm";

/// A module, the path that exists if the kernel has it (loaded or built in), and what is missing
/// without it. Each one loads those before it.
const MODULES: [(&str, &str, &str); 3] = [
    ("ib_core", devices::CLASS, "this machine has no RDMA device"),
    ("ib_uverbs", VERBS, "programs cannot use RDMA devices"),
    ("rdma_ucm", CONNECTION_MANAGER, "programs cannot use the connection manager"),
];

/// Checks the modules. Reports only the first one that is missing: the others depend on it.
pub fn modules(report: &mut Report) {
    for (module, path, without) in MODULES {
        if !Path::new(path).exists() {
            let advice = if module == "ib_core" { devices::ADD.to_owned() } else { how_to_load("rdma_ucm") };
            let text = format!("{without}: the kernel's module {module} is not loaded");
            return report.problem(Problem::ModulesMissing, text, advice);
        }
        report.ok(Check::Modules, format!("the kernel has {module}"));
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

/// A device file, and the device that it is for; none for the connection manager's.
type Node = (String, Option<String>);

/// Checks that the device files exist and that this user can open them.
pub fn nodes(report: &mut Report) {
    let mut nodes: Vec<Node> = Vec::new();
    if Path::new(CONNECTION_MANAGER).exists() {
        nodes.push(("rdma_cm".to_owned(), None));
    }
    let of_devices = devices::entries(VERBS).into_iter().filter(|name| name.starts_with("uverbs"));
    nodes.extend(of_devices.map(|name| (name.clone(), devices::read(&format!("{VERBS}/{name}/ibdev")))));
    let devices = nodes.iter().filter(|(_, device)| device.is_some()).count();
    let mut broken: Vec<(Error, Vec<Node>)> = Vec::new();
    for node in nodes {
        let path = format!("/dev/infiniband/{}", node.0);
        let Err(error) = File::options().read(true).write(true).open(&path) else {
            report.ok(Check::DeviceFiles, format!("{path} can be opened"));
            continue;
        };
        match broken.iter_mut().find(|(other, _)| other.kind() == error.kind()) {
            Some((_, nodes)) => nodes.push(node),
            None => broken.push((error, vec![node])),
        }
    }
    for (error, nodes) in broken {
        // Without the connection manager or all devices nothing works, for one cause.
        let is_general = nodes[0].1.is_none() || nodes.len() == devices;
        for nodes in nodes.chunks(if is_general { nodes.len() } else { 1 }) {
            report.about(nodes[0].1.as_deref().filter(|_| !is_general));
            let names: Vec<&str> = nodes.iter().map(|(name, _)| name.as_str()).collect();
            report_broken(&error, &names.join(", "), report);
        }
    }
    report.about(None);
}

fn report_broken(error: &Error, names: &str, report: &mut Report) {
    match error.kind() {
        ErrorKind::NotFound => report.problem(
            Problem::DeviceFilesMissing,
            format!("/dev/infiniband has no {names}"),
            "is udev running? In a container, pass the devices to it (docker: --device=/dev/infiniband)",
        ),
        ErrorKind::PermissionDenied => report.problem(
            Problem::DeviceFilesPermission,
            format!("this user may not open /dev/infiniband/{names}"),
            "the mode is usually 0666: check the udev rules, or in a container the device cgroup",
        ),
        _ => report.problem(
            Problem::DeviceFilesError,
            format!("/dev/infiniband/{names} cannot be opened: {error}"),
            "see dmesg",
        ),
    }
}

//! The codes of the findings, which `--json` prints. This list is complete: a finding cannot have
//! another code, a code that no finding uses is a compile error, and a test compares the list with
//! docs/doctor-codes.md.
//!
//! A released code keeps its name, its meaning and its state. A code that is no longer reported
//! moves to the retired codes of docs/doctor-codes.md, and its name is not used again.

/// Defines an enumeration of the codes of each state.
macro_rules! codes {
    ($($(#[$attribute:meta])* $type:ident { $($variant:ident = $code:literal,)* })*) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        #[deny(dead_code)]
        pub enum $type {
            $($variant,)*
        }

        impl $type {
            #[cfg(test)]
            pub const ALL: &[$type] = &[$($type::$variant,)*];

            /// Returns the code as `--json` prints it.
            pub fn code(self) -> &'static str {
                match self {
                    $($type::$variant => $code,)*
                }
            }
        }
    )*};
}

codes! {
    /// Codes of findings in the states ok and not-applicable: the name of the check.
    Check {
        Addresses = "addresses",
        Configuration = "configuration",
        Connection = "connection",
        Descriptors = "descriptors",
        DeviceFiles = "device-files",
        Environment = "environment",
        Ibacm = "ibacm",
        Library = "library",
        Memlock = "memlock",
        Modules = "modules",
        Ports = "ports",
    }

    /// Codes of warnings: the name of the check, and after a dot what was found.
    Warning {
        AddressesArpFlux = "addresses.arp-flux",
        AddressesNoInterface = "addresses.no-interface",
        ConfigurationIgnoredLine = "configuration.ignored-line",
        ConfigurationNotANumber = "configuration.not-a-number",
        ConfigurationUnknownSetting = "configuration.unknown-setting",
        ConfigurationUnreadable = "configuration.unreadable",
        DescriptorsFew = "descriptors.few",
        DevicesNoDrivers = "devices.no-drivers",
        DevicesNoGuid = "devices.no-guid",
        IbacmBadLine = "ibacm.bad-line",
        IbacmForbidden = "ibacm.forbidden",
        IbacmHangs = "ibacm.hangs",
        IbacmInvalidValue = "ibacm.invalid-value",
        IbacmKernelOnly = "ibacm.kernel-only",
        IbacmNoDevice = "ibacm.no-device",
        IbacmNoPath = "ibacm.no-path",
        IbacmNotRunning = "ibacm.not-running",
        IbacmOpen = "ibacm.open",
        IbacmPortFile = "ibacm.port-file",
        IbacmSilent = "ibacm.silent",
        IbacmUnknownOption = "ibacm.unknown-option",
        LibraryOld = "library.old",
        MemlockLittle = "memlock.little",
        PortsNoRoceV2 = "ports.no-roce-v2",
        PortsRoceV1 = "ports.roce-v1",
        PortsRoceV1Routed = "ports.roce-v1-routed",
        PortsUnusable = "ports.unusable",
    }

    /// Codes of problems: the name of the check, and after a dot what was found.
    Problem {
        AddressesInterfaceDown = "addresses.interface-down",
        AddressesNone = "addresses.none",
        AddressesOtherNamespace = "addresses.other-namespace",
        ConnectionFailed = "connection.failed",
        DeviceFilesError = "device-files.error",
        DeviceFilesMissing = "device-files.missing",
        DeviceFilesPermission = "device-files.permission",
        DevicesNone = "devices.none",
        LibraryDeviceNotFound = "library.device-not-found",
        LibraryNoLibibverbs = "library.no-libibverbs",
        LibraryNotLibrdmacm = "library.not-librdmacm",
        LibraryNotLoaded = "library.not-loaded",
        LibraryOldLibibverbs = "library.old-libibverbs",
        MemlockTooLittle = "memlock.too-little",
        ModulesMissing = "modules.missing",
        PartitionsNotAMember = "partitions.not-a-member",
        PortsInactive = "ports.inactive",
        PortsNoGid = "ports.no-gid",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the first two columns of the table, and whether meaning and version are given.
    fn documented() -> Vec<(&'static str, &'static str, bool)> {
        let document = include_str!("../../../docs/doctor-codes.md");
        let (_, table) = document.split_once("| code | state | meaning | since |\n").unwrap();
        let rows = table.lines().skip(1).take_while(|line| line.starts_with('|'));
        rows.map(|row| {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let [code, state, meaning, since] = cells[..] else { panic!("{row} does not have four columns") };
            let numbers = since.split('.').filter(|number| number.parse::<u32>().is_ok()).count();
            (code.trim_matches('`'), state, !meaning.is_empty() && numbers == 3)
        })
        .collect()
    }

    fn reported() -> Vec<(&'static str, &'static str)> {
        let checks = Check::ALL.iter().map(|check| (check.code(), "ok, not-applicable"));
        let warnings = Warning::ALL.iter().map(|warning| (warning.code(), "warning"));
        checks.chain(warnings).chain(Problem::ALL.iter().map(|problem| (problem.code(), "problem"))).collect()
    }

    #[test]
    fn codes_are_those_of_the_document() {
        let rows: Vec<(&str, &str)> = documented().iter().map(|(code, state, _)| (*code, *state)).collect();
        let without = |some: &[(&'static str, &'static str)], others: &[(&str, &str)]| {
            some.iter().filter(|row| !others.contains(row)).copied().collect::<Vec<_>>()
        };
        assert_eq!(without(&rows, &reported()), [], "only docs/doctor-codes.md has these");
        assert_eq!(without(&reported(), &rows), [], "docs/doctor-codes.md lacks these");
        assert!(rows.is_sorted() && rows.len() == reported().len(), "the table is sorted, each code in one row");
        assert!(documented().iter().all(|(code, _, complete)| *complete || panic!("{code}: meaning or release")));
    }

    #[test]
    fn codes_are_unique_and_begin_with_the_check() {
        let codes: BTreeSet<&str> = reported().iter().map(|(code, _)| *code).collect();
        assert_eq!(codes.len(), reported().len());
        for (code, state) in reported() {
            assert_eq!(code.split('.').count(), if state.starts_with("ok") { 1 } else { 2 }, "{code}");
        }
    }

    /// rdmacm-doctor(8) describes each check.
    #[test]
    fn checks_are_in_the_manual_page() {
        let page = include_str!("../../../docs/man/rdmacm-doctor.8");
        let listed: BTreeSet<&str> =
            page.lines().filter_map(|line| line.strip_prefix(".It ")).flat_map(|names| names.split(" , ")).collect();
        for (code, _) in reported() {
            let check = code.split('.').next().unwrap();
            assert!(listed.contains(check), "{check} is not in rdmacm-doctor(8)");
        }
    }
}

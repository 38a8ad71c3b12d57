//! Adds what the C headers have and cbindgen does not write: unnamed unions and enumerations,
//! variable arguments, hexadecimal values, and commas and comments that C90 accepts.

use std::collections::HashMap;
use std::error::Error;

/// Constants that are the enumerators of an unnamed enumeration in C; all others become macros.
const ENUMERATIONS: [&[&str]; 5] = [
    &["RDMA_MAX_RESP_RES", "RDMA_MAX_INIT_DEPTH"],
    &["RDMA_OPTION_ID", "RDMA_OPTION_IB"],
    &["RDMA_OPTION_ID_TOS", "RDMA_OPTION_ID_REUSEADDR", "RDMA_OPTION_ID_AFONLY", "RDMA_OPTION_ID_ACK_TIMEOUT"],
    &["RDMA_OPTION_IB_PATH"],
    &["RDMA_SQSIZE", "RDMA_RQSIZE", "RDMA_INLINE", "RDMA_IOMAPSIZE", "RDMA_ROUTE"],
];

/// Unions without a name in C, each with the name of the member that is such a union; empty for an
/// unnamed member.
const UNIONS: [(&str, &str); 4] =
    [("rdma_addr_src", ""), ("rdma_addr_dst", ""), ("rdma_addr_transport", "addr"), ("rdma_cm_event_param", "param")];

/// Finishes the header `text`, the output of cbindgen: items, with their comments, between empty
/// lines. Fails if a constant of `ENUMERATIONS` is missing.
pub fn finish(text: &str) -> Result<String, Box<dyn Error>> {
    let text = one_line_comments(text)
        .replace("#endif // __cplusplus", "#endif")
        .replace("}  // extern \"C\"\n#endif  // __cplusplus", "}\n#endif")
        .replace("rfcntl_argument arg", "...");
    let items: Vec<&str> = text.split("\n\n").collect();
    let (unions, items) = take_unions(items);
    let items = items.into_iter().map(|item| unnamed_unions(item, &unions)).collect();
    let items: Vec<String> = unnamed_enumerations(items)?.iter().map(|item| tidy(item)).collect();
    Ok(items.join("\n\n").trim().to_owned() + "\n")
}

/// Puts each comment with a single line of text on one line.
fn one_line_comments(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let above = lines.len().checked_sub(2).and_then(|n| lines.get(n..));
        match (line.trim(), above) {
            ("*/", Some([begin, words])) if begin.trim() == "/**" => {
                let short = format!("{begin} {} */", words.trim().trim_start_matches("* "));
                lines.truncate(lines.len() - 2);
                lines.push(short);
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

/// Splits `items` into the members of the unions of [`UNIONS`], by union, and the other items.
fn take_unions(items: Vec<&str>) -> (HashMap<&str, Vec<&str>>, Vec<&str>) {
    let mut unions = HashMap::new();
    let mut others = Vec::new();
    for item in items {
        let start = |name: &str| item.lines().position(|line| line == format!("union {name} {{"));
        match UNIONS.iter().find_map(|(name, _)| Some((*name, start(name)?))) {
            Some((name, start)) => {
                let members = item.lines().skip(start + 1).take_while(|line| *line != "};").collect();
                unions.insert(name, members);
            }
            None => others.push(item),
        }
    }
    (unions, others)
}

/// Replaces the members of `item` whose types are in `unions` with the unions. Unnamed members are
/// marked with `__extension__`, because C99 lacks unnamed members and -pedantic warns.
fn unnamed_unions(item: &str, unions: &HashMap<&str, Vec<&str>>) -> String {
    let mut lines = Vec::new();
    for line in item.lines() {
        let named = line.trim().strip_prefix("union ").and_then(|rest| rest.split_once(' '));
        let union = named.and_then(|(name, _)| UNIONS.iter().find(|(union, _)| *union == name));
        match union.and_then(|(name, member)| Some((unions.get(name)?, *member))) {
            Some((members, member)) => {
                lines.push(if member.is_empty() { "    __extension__ union {" } else { "    union {" }.to_owned());
                lines.extend(members.iter().map(|line| format!("    {line}")));
                lines.push(format!("    }} {member}").trim_end().to_owned() + ";");
            }
            None => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

/// Gathers the constants of [`ENUMERATIONS`] into enumerations, each where its first constant was.
fn unnamed_enumerations(mut items: Vec<String>) -> Result<Vec<String>, Box<dyn Error>> {
    for names in ENUMERATIONS {
        let defines = |item: &String, name: &str| item.lines().any(|l| l.starts_with(&format!("#define {name} ")));
        let Some(place) = items.iter().position(|item| defines(item, names[0])) else {
            continue;
        };
        let mut lines = vec!["enum {".to_owned()];
        for name in names {
            let index = items.iter().position(|item| defines(item, name)).ok_or(*name)?;
            for line in items.remove(index).lines() {
                match line.strip_prefix(&format!("#define {name} ")) {
                    Some(value) => lines.push(format!("    {name} = {value},")),
                    None => lines.push(format!("    {line}")),
                }
            }
        }
        lines.push("};".to_owned());
        items.insert(place, lines.join("\n"));
    }
    Ok(items)
}

/// Writes values from 256 on in hexadecimal, and removes the comma behind the last enumerator.
fn tidy(item: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in item.lines() {
        if line == "};"
            && let Some(last) = lines.last_mut()
        {
            let length = last.trim_end_matches(',').len();
            last.truncate(length);
        }
        let value = if line.starts_with("#define ") { line.rfind(' ') } else { line.rfind("= ").map(|n| n + 1) };
        lines.push(match value {
            Some(space) => format!("{} {}", &line[..space], hexadecimal(&line[space + 1..])),
            None => line.to_owned(),
        });
    }
    lines.join("\n")
}

/// Returns a decimal number above 255, with its suffix, in hexadecimal; other text as it is.
fn hexadecimal(text: &str) -> String {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    match digits.parse::<u64>() {
        Ok(value) if value > 255 => {
            let width = match value {
                0..=0xFFFF => 4,
                0x1_0000..=0xFFFF_FFFF => 8,
                _ => 16,
            };
            format!("0x{value:0width$X}{}", text[digits.len()..].to_uppercase())
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers() {
        assert_eq!(hexadecimal("255"), "255");
        assert_eq!(hexadecimal("262,"), "0x0106,");
        assert_eq!(hexadecimal("17170432ull"), "0x01060000ULL");
        assert_eq!(hexadecimal("18446744073709486080ull"), "0xFFFFFFFFFFFF0000ULL");
        assert_eq!(hexadecimal("(1 << 0),"), "(1 << 0),");
    }

    #[test]
    fn enumerations_take_their_constants() -> Result<(), Box<dyn Error>> {
        let items = ["x", "/** id */\n#define RDMA_OPTION_ID 0", "y", "#define RDMA_OPTION_IB 1"];
        let items = items.map(str::to_owned).into();
        let items: Vec<String> = unnamed_enumerations(items)?.iter().map(|item| tidy(item)).collect();
        assert_eq!(items, ["x", "enum {\n    /** id */\n    RDMA_OPTION_ID = 0,\n    RDMA_OPTION_IB = 1\n};", "y"]);
        Ok(())
    }

    #[test]
    fn unions_lose_their_names() -> Result<(), Box<dyn Error>> {
        let union = "/** u */\nunion rdma_cm_event_param {\n    int arg;\n};";
        let user = "struct e {\n    union rdma_cm_event_param param;\n};\n";
        assert_eq!(
            finish(&format!("{union}\n\n{user}"))?,
            "struct e {\n    union {\n        int arg;\n    } param;\n};\n"
        );
        Ok(())
    }
}

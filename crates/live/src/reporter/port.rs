// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the socket of the reporter's port on QEMU's command line.
//!
//! Both options have QEMU's two forms: `name=value` pairs, in which `,,` is a comma of a value
//! (`util/qemu-option.c`), and JSON, as libvirt writes it (`DeviceState` and `ChardevOptions` of the QAPI
//! schema).

use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// The port's name.
const PORT: &[u8] = b"org.bifold.report.0";

/// Options by name. Names inside JSON objects are joined by dots.
type Options = BTreeMap<String, Vec<u8>>;

/// The path of the Unix socket on which this QEMU listens for readers of the reporter's port; `None` if it
/// has none. The command line has the form of `/proc/PID/cmdline`. libvirt hands the socket to QEMU as a file
/// descriptor, without a path.
///
/// ```
/// use bifold_live::reporter::socket;
///
/// let cmdline = b"qemu-system-x86_64\0-chardev\0socket,id=r,path=/run/web.sock,server=on,wait=off\0\
///     -device\0virtio-serial\0-device\0virtserialport,chardev=r,name=org.bifold.report.0\0";
/// assert_eq!(socket(cmdline).unwrap().to_str(), Some("/run/web.sock"));
/// ```
pub fn socket(cmdline: &[u8]) -> Option<PathBuf> {
    let is_port = |o: &Options| is(o, &["driver"], b"virtserialport") && is(o, &["name"], PORT);
    // Most command lines have no such port, and are not parsed.
    let devices = values(cmdline, b"device").filter(|v| v.windows(PORT.len()).any(|w| w == PORT));
    let port = devices.map(|v| parse(v, "driver")).find(is_port)?;
    let id = port.get("chardev")?;
    let mut chardevs = values(cmdline, b"chardev").map(|v| parse(v, "backend"));
    let mut chardev = chardevs.find(|o| o.get("id") == Some(id))?;
    let is_socket = is(&chardev, &["backend", "backend.type"], b"socket");
    let path = ["path", "backend.data.addr.data.path"].iter().find_map(|name| chardev.remove(*name));
    path.filter(|path| is_socket && listens(&chardev) && !path.is_empty())
        .map(|path| OsString::from_vec(path).into())
}

/// Whether QEMU listens on the socket, rather than connecting to it. In JSON that is the default.
fn listens(chardev: &Options) -> bool {
    let json = chardev.contains_key("backend.type");
    let server = chardev.get("server").or_else(|| chardev.get("backend.data.server"));
    server.map_or(json, |on| matches!(on.as_slice(), b"on" | b"yes" | b"true" | b"y"))
}

fn is(options: &Options, names: &[&str], value: &[u8]) -> bool {
    names.iter().any(|name| options.get(*name).is_some_and(|v| v == value))
}

/// The values of an option, which begins with one dash or two.
fn values<'a>(cmdline: &'a [u8], option: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    let mut words = cmdline.split(|b| *b == 0);
    std::iter::from_fn(move || {
        let names =
            |word: &[u8]| word.strip_prefix(b"-").map(|w| w.strip_prefix(b"-").unwrap_or(w)) == Some(option);
        words.find(|word| names(word))?;
        words.next()
    })
}

/// The options in a value. `first` names one that may come first without its name.
fn parse(value: &[u8], first: &str) -> Options {
    let mut options = Options::new();
    if value.first() == Some(&b'{') {
        if let Ok(json) = serde_json::from_slice(value) {
            flatten("", json, &mut options);
        }
        return options;
    }
    for (place, option) in split(value).into_iter().enumerate() {
        let (name, value) = match option.iter().position(|b| *b == b'=') {
            Some(at) => (option[..at].to_vec(), option[at + 1..].to_vec()),
            None if place == 0 => (first.into(), option),
            // A flag alone is on; `noNAME` is not asked for here.
            None => (option, b"on".into()),
        };
        options.insert(String::from_utf8_lossy(&name).into_owned(), value);
    }
    options
}

/// The parts between commas. Two commas are one of the part.
fn split(value: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = value.iter().copied().peekable();
    while let Some(b) = bytes.next() {
        match (b, parts.last_mut()) {
            (b',', Some(last)) if bytes.next_if_eq(&b',').is_some() => last.push(b','),
            (b, Some(last)) if b != b',' => last.push(b),
            _ => parts.push(Vec::new()),
        }
    }
    parts
}

fn flatten(name: &str, value: Value, options: &mut Options) {
    match value {
        Value::Object(all) => {
            for (key, value) in all {
                let name = if name.is_empty() { key } else { format!("{name}.{key}") };
                flatten(&name, value, options);
            }
        }
        Value::String(text) => drop(options.insert(name.into(), text.into())),
        Value::Bool(on) => drop(options.insert(name.into(), on.to_string().into())),
        Value::Null | Value::Number(_) | Value::Array(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(words: &[&str]) -> Option<String> {
        let cmdline: String = words.iter().map(|w| format!("{w}\0")).collect();
        socket(cmdline.as_bytes()).map(|p| p.to_str().unwrap().to_owned())
    }

    const DEVICE: &str = "virtserialport,chardev=r,name=org.bifold.report.0";

    #[test]
    fn options_come_in_any_order_and_with_commas_in_values() {
        for chardev in [
            "socket,id=r,path=/a,,b=c,server=on,wait=off",
            "socket,path=/a,,b=c,server,nowait,id=r",
            "id=r,server=yes,backend=socket,path=/x,path=/a,,b=c",
        ] {
            let words = ["qemu", "-chardev", chardev, "-device", "virtio-serial", "-device", DEVICE];
            assert_eq!(of(&words).as_deref(), Some("/a,b=c"), "{chardev}");
        }
        let device = "name=org.bifold.report.0,bus=s.0,driver=virtserialport,chardev=r";
        let other = "virtserialport,chardev=agent,name=org.qemu.guest_agent.0";
        let words = [
            "qemu",
            "--device",
            other,
            "--device",
            device,
            "--chardev",
            "socket,id=agent,path=/x,server=on",
            "--chardev",
            "socket,id=r,server=on,path=rel",
        ];
        assert_eq!(of(&words).as_deref(), Some("rel"));
    }

    #[test]
    fn json_is_read_as_well() {
        let device = r#"{"driver":"virtserialport","bus":"s.0","nr":1,"chardev":"r","id":"channel0","name":"org.bifold.report.0"}"#;
        let chardev = r#"{"id":"r","backend":{"type":"socket","data":{"addr":{"type":"unix","data":{"path":"/run/a,,b"}},"wait":false,"server":true}}}"#;
        assert_eq!(of(&["q", "-device", device, "-chardev", chardev]).as_deref(), Some("/run/a,,b"));
        let plain = "socket,id=r,path=/p,server=on";
        assert_eq!(of(&["q", "-chardev", plain, "-device", device]).as_deref(), Some("/p"));
        let client = chardev.replace("true", "false");
        assert_eq!(of(&["q", "-device", device, "-chardev", &client]), None);
    }

    #[test]
    fn without_a_socket_that_can_be_connected_to_there_is_none() {
        for (chardev, device) in [
            ("socket,id=r,fd=33,server=on,wait=off", DEVICE),
            ("socket,id=r,path=/a", DEVICE),
            ("socket,id=r,path=/a,server=off", DEVICE),
            ("socket,id=r,path=,server=on", DEVICE),
            ("pipe,id=r,path=/a,server=on", DEVICE),
            ("socket,id=other,path=/a,server=on", DEVICE),
            ("socket,id=r,path=/a,server=on", "virtserialport,name=org.bifold.report.0"),
            ("socket,id=r,path=/a,server=on", "virtconsole,chardev=r,name=org.bifold.report.0"),
            ("socket,id=r,path=/a,server=on", "virtserialport,chardev=r,name=org.bifold.report.1"),
            ("socket,id=r,path=/a,server=on", "{\"name\":\"org.bifold.report.0\""),
        ] {
            assert_eq!(of(&["qemu", "-chardev", chardev, "-device", device]), None, "{chardev} {device}");
        }
        assert_eq!(of(&["qemu", "-device"]), None);
        assert_eq!(socket(b""), None);
    }

    proptest! {
        #[test]
        fn any_command_line_has_a_socket_or_none(
            parts in prop::collection::vec(
                prop_oneof![
                    prop::sample::select(vec![
                        "\0-device\0virtserialport,name=org.bifold.report.0", "\0-device\0{\"driver\":", "\0-chardev\0socket",
                        ",server", ",,", ",", "=", ",chardev=r", ",id=r", ",path=/a",
                    ])
                    .prop_map(String::from),
                    "[\\x00-\\xff]{0,9}",
                ],
                0..12,
            ),
        ) {
            let _ = socket(parts.concat().as_bytes());
        }
    }
}

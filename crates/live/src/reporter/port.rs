// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds the socket of the reporter's port on QEMU's command line.

use bifold_host::{CommandLine, Pairs};
use std::path::PathBuf;

/// The port's name.
const PORT: &str = "org.bifold.report.0";

/// The path of the Unix socket on which this QEMU listens for readers of the reporter's port; `None` if it
/// has none. libvirt hands the socket to QEMU as a file descriptor, without a path.
///
/// ```
/// use bifold_host::CommandLine;
/// use bifold_live::reporter::socket;
///
/// let line = b"qemu-system-x86_64\0-chardev\0socket,id=r,path=/run/web.sock,server=on,wait=off\0\
///     -device\0virtio-serial\0-device\0virtserialport,chardev=r,name=org.bifold.report.0\0";
/// assert_eq!(socket(&CommandLine::parse(line)).unwrap().to_str(), Some("/run/web.sock"));
/// ```
pub fn socket(line: &CommandLine) -> Option<PathBuf> {
    let is_port = |d: &Pairs| d.get("driver") == Some("virtserialport") && d.get("name") == Some(PORT);
    let port = line.pairs("device", "driver").find(is_port)?;
    let id = port.get("chardev")?;
    let chardev = line.pairs("chardev", "backend").find(|chardev| chardev.get("id") == Some(id))?;
    chardev.listening_socket().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(words: &[&str]) -> Option<String> {
        let cmdline: String = words.iter().map(|w| format!("{w}\0")).collect();
        socket(&CommandLine::parse(cmdline.as_bytes())).map(|p| p.to_str().unwrap().to_owned())
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
        assert_eq!(socket(&CommandLine::default()), None);
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
            let _ = socket(&CommandLine::parse(parts.concat().as_bytes()));
        }
    }
}

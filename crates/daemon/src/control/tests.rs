// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;
use crate::DaemonError;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

/// Answers one request as `by` says, while `client` asks.
fn with_server<T: Send>(
    folder: &std::path::Path,
    by: impl FnMut(Request) -> Answer + Send,
    client: impl FnOnce() -> T + Send,
) -> T {
    let control = Control::listen(folder).unwrap();
    let mut by = by;
    std::thread::scope(|scope| {
        let client = scope.spawn(client);
        let start = Instant::now();
        while !client.is_finished() && start.elapsed() < Duration::from_secs(20) {
            control.answer(&mut by);
            std::thread::sleep(Duration::from_millis(2));
        }
        client.join().unwrap()
    })
}

#[test]
fn a_question_is_answered_and_a_refusal_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let by = |request| match request {
        Request::Hold { vm, seconds: Some(9.0) } => Answer::Done(vec![vm]),
        other => Answer::Refused(format!("{other:?}")),
    };
    let hold = |vm: &str, seconds| Request::Hold { vm: vm.into(), seconds };
    let ask = |request| with_server(dir.path(), by, || ask(dir.path(), &request));
    assert_eq!(ask(hold("we\"b\n", Some(9.0))).unwrap(), Answer::Done(vec!["we\"b\n".into()]));
    let error = ask(hold("web", None)).unwrap_err().to_string();
    assert!(error.contains("seconds: None"), "{error}");
}

#[test]
fn what_is_no_request_is_refused_and_silence_does_not_stop_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let mut asked = 0;
    let by = |_| {
        asked += 1;
        Answer::Done(Vec::new())
    };
    let answers = with_server(dir.path(), by, || {
        let _silent = UnixStream::connect(dir.path().join(SOCKET)).unwrap();
        let long = "x".repeat(9000);
        ["{\"ask\":\"destroy\"}\n", "{\"ask\":\"status\",\"more\":1}\n", "\n", &long].map(|text| {
            let mut stream = UnixStream::connect(dir.path().join(SOCKET)).unwrap();
            // The daemon may hang up before all of it is sent.
            let _ = stream.write_all(text.as_bytes());
            let mut answer = String::new();
            let _ = stream.read_to_string(&mut answer);
            answer
        })
    });
    assert!(answers[..3].iter().all(|a| a.contains("cannot be read")), "{answers:?}");
    assert_eq!(asked, 0);
}

#[test]
fn the_socket_is_its_owners_and_one_that_answers_is_not_taken() {
    let dir = tempfile::tempdir().unwrap();
    let control = Control::listen(dir.path()).unwrap();
    let path = dir.path().join(SOCKET);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Control::listen(dir.path()), Err(DaemonError::SocketInUse { .. })));
    drop(control);
    assert!(!path.exists());
    // As a daemon that was killed leaves it.
    drop(UnixListener::bind(&path).unwrap());
    assert!(Control::listen(dir.path()).is_ok());
    assert!(matches!(ask(&dir.path().join("none"), &Request::Status {}), Err(DaemonError::NoDaemon { .. })));
}

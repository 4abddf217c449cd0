// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Ends a KVM_RUN whose guest does not end, and shows where the threads of a process wait.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use vmm_sys_util::signal::{SIGRTMIN, register_signal_handler};

extern "C" fn nothing(_: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {}

/// Installs an empty handler, so that the signal only interrupts.
pub fn handle_signal() -> Result<()> {
    register_signal_handler(SIGRTMIN(), nothing).context("a signal's handler")
}

/// Sends the signal that interrupts KVM_RUN to a thread of this process.
pub fn interrupt(thread: i32) {
    // SAFETY: the call touches no memory; the signal has an empty handler.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGRTMIN()) };
}

/// This thread's number.
pub fn thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Interrupts the thread that made it when a KVM_RUN takes too long.
#[derive(Debug)]
pub struct Watchdog {
    begun: Instant,
    /// Milliseconds after `begun` at which KVM_RUN is late; 0 for none under way.
    late: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
    limit: Duration,
    seen: Arc<Mutex<Vec<String>>>,
    /// KVM's directory of the VM.
    vm: Arc<Mutex<PathBuf>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watchdog {
    pub fn new(limit: Duration) -> Watchdog {
        let (begun, victim) = (Instant::now(), thread());
        let late = Arc::new(AtomicU64::new(0));
        let end = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let vm = Arc::new(Mutex::new(PathBuf::new()));
        let thread = std::thread::spawn({
            let (late, end, seen, vm) =
                (Arc::clone(&late), Arc::clone(&end), Arc::clone(&seen), Arc::clone(&vm));
            move || {
                while !end.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(50));
                    let at = late.load(Ordering::Acquire);
                    if at != 0 && begun.elapsed().as_millis() as u64 > at {
                        if let Ok(mut seen) = seen.lock() {
                            if seen.is_empty() {
                                *seen = stacks(std::process::id());
                                seen.extend(workers());
                                let dir = vm.lock().map(|v| v.clone()).unwrap_or_default();
                                seen.extend(counting(&dir));
                                seen.extend(traced());
                            }
                        }
                        interrupt(victim);
                    }
                }
            }
        });
        Watchdog { begun, late, end, limit, seen, vm, thread: Some(thread) }
    }

    /// Names the VM whose counts tell what a KVM_RUN that is late does.
    pub fn vm(&self, dir: &Path) {
        if let Ok(mut vm) = self.vm.lock() {
            dir.clone_into(&mut vm);
        }
    }

    /// What the kernel was about when a call was late, since the last question.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().map(|mut s| std::mem::take(&mut *s)).unwrap_or_default()
    }

    /// Before a call that may take long, and after it.
    pub fn watch(&self, begins: bool) {
        let at = if begins { (self.begun.elapsed() + self.limit).as_millis() as u64 } else { 0 };
        self.late.store(at, Ordering::Release);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The kernel stack of the task in this directory.
fn stack(task: &Path) -> String {
    let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
    let frames: Vec<String> = read("stack")
        .lines()
        .filter_map(|l| l.split_once("] ").map(|(_, r)| r.split(['/', ' ']).next().unwrap_or(r).to_owned()))
        .collect();
    let status = read("status");
    let state = status.lines().find_map(|l| l.strip_prefix("State:")).unwrap_or_default().trim().to_owned();
    format!("{} {state}: {}", read("comm").trim(), frames.join(" < "))
}

/// KVM's counts of a VM that grow, and by how much in a tenth of a second.
fn counting(vm: &Path) -> Option<String> {
    let read = || -> Vec<(String, u64)> {
        let files = fs::read_dir(vm).into_iter().flatten().flatten();
        let number = |p: PathBuf| fs::read_to_string(p).ok()?.trim().parse().ok();
        files
            .filter_map(|f| Some((f.file_name().to_string_lossy().into_owned(), number(f.path())?)))
            .collect()
    };
    let old = read();
    std::thread::sleep(Duration::from_millis(100));
    let grown = old.iter().zip(read()).filter(|(a, b)| b.1 > a.1);
    let words: Vec<String> = grown.map(|(a, b)| format!("{} {}", a.0, b.1 - a.1)).collect();
    (!words.is_empty()).then(|| format!("KVM counts in 100 ms: {}", words.join(", ")))
}

/// Some events of KVM: what a KVM_RUN that is late meets again and again.
fn traced() -> Vec<String> {
    const TRACING: &str = "/sys/kernel/tracing";
    const EVENTS: [&str; 3] = ["kvm_exit", "kvm_page_fault", "kvm_emulate_insn"];
    let set = |on: &str| {
        EVENTS.iter().for_each(|e| drop(fs::write(format!("{TRACING}/events/kvm/{e}/enable"), on)))
    };
    let _ = fs::write(format!("{TRACING}/trace"), "");
    set("1");
    std::thread::sleep(Duration::from_millis(30));
    set("0");
    let text = fs::read_to_string(format!("{TRACING}/trace")).unwrap_or_default();
    text.lines().filter(|l| l.contains("kvm")).take(6).map(|l| l.trim().to_owned()).collect()
}

fn tasks(dir: &str) -> impl Iterator<Item = PathBuf> {
    fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path())
}

/// The kernel stacks of all threads of a process.
pub fn stacks(process: u32) -> Vec<String> {
    tasks(&format!("/proc/{process}/task")).map(|t| stack(&t)).collect()
}

/// The kernel stacks of workers that execute KVM.
pub fn workers() -> Vec<String> {
    let all = tasks("/proc").filter(|t| t.join("stack").exists()).map(|t| stack(&t));
    all.filter(|s| {
        s.starts_with("kworker") && (s.contains("kvm") || s.contains("srcu") || s.contains("paging"))
    })
    .collect()
}

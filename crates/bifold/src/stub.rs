//! Stand-ins until the crates land.
#![allow(missing_docs, dead_code)]
pub mod capture {
    use std::error::Error;
    use std::ffi::OsString;
    use std::path::PathBuf;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;
    pub enum Timing { Exact, Fast }
    pub enum Thp { Always, Madvise, Never }
    pub enum Root { Host, Initramfs { include: Vec<PathBuf> } }
    pub struct GuestSpec { pub command: Vec<OsString>, pub cwd: PathBuf, pub env: Vec<(OsString, OsString)>, pub timing: Timing, pub vcpus: u32, pub kpti: bool, pub thp: Thp, pub memory_mib: u64, pub kernel: Option<PathBuf>, pub modules: Option<PathBuf>, pub root: Root, pub timeout: Option<Duration>, pub check_every: u64 }
    #[derive(Clone, Copy)]
    pub enum CommandExit { Code(i32), Signal(i32), OutOfMemory, TimedOut, Interrupted }
    pub struct CaptureReport { pub exit: CommandExit, pub stdout: Vec<u8>, pub stderr: Vec<u8>, pub qemu_version: String, pub kernel_version: String, pub guest_frames: u64, pub vcpu_cpu_seconds: f64, pub stats: bifold_trace::Stats }
    pub struct Progress;
    #[derive(Debug)]
    pub struct CaptureError;
    impl std::fmt::Display for CaptureError { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, "capture is not there yet") } }
    impl Error for CaptureError {}
    #[allow(clippy::type_complexity)]
    pub fn capture(_: &GuestSpec, _: &AtomicBool, _: &mut dyn FnMut(Progress), _: &mut dyn FnMut(&[u64]) -> Result<(), Box<dyn Error + Send + Sync>>) -> Result<CaptureReport, CaptureError> { Err(CaptureError) }
    pub fn guest_frames(s: &GuestSpec) -> u64 { s.memory_mib * 256 }
    pub mod doctor {
        pub struct Check { pub name: String, pub ok: bool, pub detail: String, pub remedy: String, pub needed_by: String }
        pub fn checks() -> Vec<Check> { vec![] }
    }
}

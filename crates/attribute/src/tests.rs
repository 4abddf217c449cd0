// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Both views of streams written by hand, from the model's events to rows.

use crate::perf::made;
use crate::{Attribution, Metric, View, Where};
use bifold_model::{Config, Costs, Model, Options, Profile};
use bifold_trace::Event;
use bifold_trace::event::{log, log_events};

const SYMBOLS: &[u8] = b"ffffffff81000000 T entry_SYSCALL_64\nffffffff81001000 T asm_exc_page_fault\n\
    ffffffff81002000 T asm_sysvec_apic_timer_interrupt\nffffffff81003000 T clear_page\n\
    ffffffff81004000 T do_read\n";
const SYSCALL: u64 = 0xffff_ffff_8100_0010;
const PAGE_FAULT: u64 = 0xffff_ffff_8100_1010;
const TIMER: u64 = 0xffff_ffff_8100_2010;
const CLEAR_PAGE: u64 = 0xffff_ffff_8100_3010;
const DO_READ: u64 = 0xffff_ffff_8100_4010;

/// Two functions of each program, and a page that they use.
const TOUCH: u64 = 0x40_0010;
const ASK: u64 = 0x40_0110;
const BUFFER: u64 = 0x70_0000;

/// A page of the kernel's direct map.
fn page(n: u64) -> u64 {
    0xffff_8880_0000_0000 + (n << 12)
}

/// A stream of two vCPUs: programs `one` (PID 50, on the first) and `two` (60, on the second).
struct Stream(Vec<u64>);

impl Stream {
    fn new() -> Stream {
        const FLAGS: u64 = 7;
        // Three paths of tables from the root at 0x100: to the buffer, and to 512 pages of the kernel.
        let entry = |gfn: u64| gfn << 12 | FLAGS;
        let table = |entries: &[(u64, u64)]| {
            let mut all = [0; 512];
            entries.iter().for_each(|(i, e)| all[*i as usize & 511] = *e);
            all
        };
        let index = |va: u64, level: u64| va >> (3 + 9 * level);
        let kernel: Vec<(u64, u64)> = (0..512).map(|n| (n, entry(0x1000 + n))).collect();
        let mut s = Stream(Vec::new());
        for (gfn, level, entries) in [
            (0x103, 1, table(&[(index(BUFFER, 1), entry(0x2000))])),
            (0x106, 1, table(&kernel)),
            (0x102, 2, table(&[(index(BUFFER, 2), entry(0x103))])),
            (0x105, 2, table(&[(0, entry(0x106))])),
            (0x101, 3, table(&[(0, entry(0x102))])),
            (0x104, 3, table(&[(0, entry(0x105))])),
            (0x100, 4, table(&[(0, entry(0x101)), (index(page(0), 4), entry(0x104))])),
        ] {
            s.event(Event::Table { gfn, level, entries: &entries });
        }
        for (vcpu, pid, name) in [(0, 50, "one"), (1, 60, "two")] {
            s.event(Event::Vcpu(vcpu)).event(Event::Cr3(0x100 << 12));
            let task =
                [made::fork(pid, 1, pid, 1), made::switch(true, 1, pid), made::comm(pid, pid, true, name)];
            s.record(vcpu, &task.concat()).record(vcpu, &made::map(pid, BUFFER, 0x1000, 0, &[], "//anon"));
            s.log(log::PERF_MAP, pid.into(), b"400000 100 touch\n400100 100 ask\n");
        }
        s.log(log::SYMBOLS, 0, SYMBOLS).event(Event::Vcpu(0));
        s
    }

    fn event(&mut self, event: Event<'_>) -> &mut Stream {
        event.encode(&mut self.0);
        self
    }

    fn log(&mut self, stream: u64, number: u64, bytes: &[u8]) -> &mut Stream {
        log_events(stream, number, bytes, &mut self.0);
        self
    }

    fn record(&mut self, vcpu: u64, bytes: &[u8]) -> &mut Stream {
        self.log(log::PERF, vcpu, bytes)
    }

    /// Blocks of code that run, and an access of the last block.
    fn run(&mut self, blocks: &[u64], address: u64) -> &mut Stream {
        for block in blocks {
            self.event(Event::Block(*block));
        }
        self.event(Event::Store(address))
    }

    fn attributed(&self) -> Where {
        let configs = &Config::ALL[..1];
        let options = Options { configs: configs.to_vec(), vcpus: 2, ..Options::default() };
        let mut model = Model::new(&Profile::load("i5-7600", &[]).unwrap(), options);
        model.charge(true);
        model.consume(&self.0).unwrap();
        let mut attribution = Attribution::new(configs);
        model.take_charges(&mut |charge| attribution.take(charge));
        let places = attribution.finish(0.0);
        assert_eq!(places.totals(View::Code), [Costs::of(&model.totals()[0].1)]);
        let mut caused = Costs::default();
        places.rows(View::Cause).iter().for_each(|r| caused.add(&r.costs[0]));
        assert_eq!(places.totals(View::Cause), [caused], "both views sum to the same");
        places
    }
}

fn misses(places: &Where, view: View) -> String {
    places.folded(view, 0, Metric::TlbMisses)
}

#[test]
fn a_cleared_page_is_charged_to_the_function_that_touched_it_and_vcpus_do_not_mix() {
    let mut s = Stream::new();
    s.event(Event::Block(TOUCH)).event(Event::Fault { gva: BUFFER, error: 6 });
    s.run(&[PAGE_FAULT], page(0));
    s.event(Event::Vcpu(1)).run(&[ASK, SYSCALL], page(1)).run(&[DO_READ], page(2));
    s.event(Event::Vcpu(0)).run(&[CLEAR_PAGE], page(3)).run(&[TOUCH], BUFFER);
    // The kernel fills the caller's buffer.
    s.event(Event::Vcpu(1)).run(&[DO_READ], BUFFER);
    let places = s.attributed();
    assert_eq!(
        misses(&places, View::Code),
        "one;[JIT];touch;anonymous 1\n\
         one;kernel;asm_exc_page_fault;direct map 1\n\
         one;kernel;clear_page;direct map 1\n\
         two;kernel;do_read;anonymous 1\n\
         two;kernel;do_read;direct map 1\n\
         two;kernel;entry_SYSCALL_64;direct map 1\n"
    );
    assert_eq!(
        misses(&places, View::Cause),
        "one;[JIT];touch;anonymous 3\n\
         two;[JIT];ask;anonymous 1\n\
         two;[JIT];ask;system call 2\n"
    );
}

#[test]
fn costs_have_the_functions_that_called_and_the_kernels_work_those_of_its_caller() {
    const STACK: u64 = 0x7fff_0000;
    let mut s = Stream::new();
    // ask() calls touch(), which faults. The kernel clears the page.
    s.event(Event::Block(ASK)).event(Event::Call(STACK));
    s.event(Event::Block(TOUCH)).event(Event::Fault { gva: BUFFER, error: 6 });
    s.run(&[PAGE_FAULT], page(0)).run(&[TOUCH], BUFFER).event(Event::Return(STACK));
    // After the return ask() itself calls the kernel, and an interrupt hits.
    s.run(&[ASK, SYSCALL], page(1)).run(&[ASK, TIMER], page(2));
    let places = s.attributed();
    assert_eq!(
        misses(&places, View::Code),
        "one;ask;asm_sysvec_apic_timer_interrupt_[k];direct map 1\n\
         one;ask;entry_SYSCALL_64_[k];direct map 1\n\
         one;ask;touch;anonymous 1\n\
         one;ask;touch;asm_exc_page_fault_[k];direct map 1\n"
    );
    assert_eq!(
        misses(&places, View::Cause),
        "one;(interrupt);kernel memory 1\n\
         one;ask;system call 1\n\
         one;ask;touch;anonymous 2\n"
    );
    // The table's rows are the same with calls and without.
    let row = |r: &crate::PlaceRow| (r.function.clone(), r.costs[0].tlb_misses);
    assert_eq!(row(places.ranked(View::Cause, 0, Metric::TlbMisses)[0]), ("touch".into(), 2));
}

#[test]
fn work_that_no_user_code_caused_is_named_as_the_kernels() {
    let mut s = Stream::new();
    s.run(&[TOUCH, TIMER], page(0));
    // No record tells of thread 70, so the kernel created it.
    s.record(0, &made::switch(true, 50, 70)).run(&[CLEAR_PAGE], page(1));
    s.record(0, &made::switch(true, 70, 0)).run(&[DO_READ], page(2)).run(&[TIMER], page(3));
    let places = s.attributed();
    assert_eq!(
        misses(&places, View::Cause),
        "(idle);kernel;(idle);kernel memory 2\n\
         kernel;kernel;clear_page;direct map 1\n\
         one;kernel;(interrupt);kernel memory 1\n"
    );
    assert!(misses(&places, View::Code).contains("(idle);kernel;do_read;direct map 1\n"));
}

#[test]
fn a_system_call_goes_on_for_its_caller_after_other_tasks_ran_and_an_exec_is_the_new_programs() {
    let mut s = Stream::new();
    s.event(Event::Block(ASK)).event(Event::Block(SYSCALL));
    s.record(0, &made::switch(true, 50, 0)).run(&[DO_READ], page(0));
    s.record(0, &made::switch(true, 0, 50));
    s.run(&[DO_READ], page(1));
    s.record(0, &made::comm(50, 50, true, "new")).run(&[DO_READ], page(2));
    // A fault of the kernel's own is part of the call, and of no mapping of the program.
    s.event(Event::Fault { gva: BUFFER, error: 2 }).run(&[CLEAR_PAGE], page(3));
    // The program returns and does not touch memory before it calls again, but the call names its block.
    s.run(&[TOUCH, SYSCALL], page(4));
    assert_eq!(
        misses(&s.attributed(), View::Cause),
        "(idle);kernel;(idle);kernel memory 1\n\
         new;[JIT];touch;system call 1\n\
         new;kernel;(exec);kernel memory 2\n\
         one;[JIT];ask;system call 1\n"
    );
}

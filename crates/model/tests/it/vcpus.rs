// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What only guests of several vCPUs have.

use bifold_model::{Config, Model, Options, Profile, Sample};
use bifold_trace::event::{gap, ipi};
use bifold_trace::{DecodeError, Event};

#[test]
fn a_vcpu_that_the_guest_does_not_have_is_refused_with_its_place() {
    for gap in [None, Some(gap::BEGIN)] {
        let events = [Some(Event::Vcpu(1)), gap.map(Event::Gap), Some(Event::Insns(3)), Some(Event::Vcpu(2))];
        let mut words = Vec::new();
        events.into_iter().flatten().for_each(|e| e.encode(&mut words));
        let mut model =
            Model::new(&Profile::load("i5-7600", &[]).unwrap(), Options { vcpus: 2, ..Options::default() });
        model.consume(&words[..1]).unwrap();
        let last = words.len() - 1;
        let refused = model.consume(&words[1..]).unwrap_err();
        assert_eq!(refused, DecodeError::Vcpu { vcpu: 2, vcpus: 2, word: last });
        assert_eq!(
            refused.to_string(),
            format!("vCPU 2 at word {last}, in a guest of 2 vCPUs, numbers 0 to 1")
        );
    }
}

/// The counts of these events, which follow the start of two vCPUs, in native, nested and shadow paging.
fn counts(events: &[Event<'_>]) -> Vec<Sample> {
    let configs = ["native", "nested-4k", "shadow-4k"].map(|name| Config::from_name(name).unwrap());
    let options = Options { vcpus: 2, configs: configs.to_vec(), ..Options::default() };
    let mut model = Model::new(&Profile::load("i5-7600", &[]).unwrap(), options);
    let mut words = Vec::new();
    for vcpu in [1, 0] {
        [Event::Vcpu(vcpu), Event::Cr4(0x20), Event::Cr3(0x1000)].iter().for_each(|e| e.encode(&mut words));
    }
    events.iter().for_each(|e| e.encode(&mut words));
    model.consume(&words).unwrap();
    model.totals().into_iter().map(|(_, s)| s).collect()
}

#[test]
fn an_ipi_exits_once_under_every_hypervisor_and_its_delivery_does_not() {
    let sent = Event::Ipi(ipi::SENT);
    let got = counts(&[sent, Event::Vcpu(1), Event::Ipi(ipi::CALL), sent]);
    assert_eq!(got.iter().map(|s| s.exits_ipi).collect::<Vec<_>>(), [0, 2, 2]);
    let of_one = Profile::load("i5-7600", &[]).unwrap().exit.ipi.cycles;
    assert_eq!(got.iter().map(|s| s.vmm_cycles).collect::<Vec<_>>(), [0, 2 * of_one, 2 * of_one]);
}

#[test]
fn a_shootdown_is_a_flush_within_the_function_call_of_another_vcpu() {
    let call = Event::Ipi(ipi::CALL);
    let of = |events: &[Event<'_>]| counts(events).iter().map(|s| s.tlb_shootdowns).collect::<Vec<_>>();
    let flushes = [Event::Invlpg(0x5000), Event::Cr3(0x1000), Event::Cr4(0xa0)];
    for flush in flushes {
        // Three pages of one call are one shootdown, and the next call is another.
        assert_eq!(
            of(&[call, flush, flush, flush, Event::Ipi(ipi::CALL_SINGLE), flush]),
            [2; 3],
            "{flush:?}"
        );
        // A flush of the vCPU's own, and one on another vCPU than the called.
        assert_eq!(of(&[flush, call, Event::Vcpu(1), flush]), [0; 3], "{flush:?}");
        // After the call: another interrupt, a fault, another address space.
        let ends = [Event::Ipi(ipi::RESCHEDULE), Event::Fault { gva: 0x5000, error: 6 }, Event::Cr3(0x2000)];
        for end in ends {
            assert_eq!(of(&[call, end, flush]), [0; 3], "{end:?} {flush:?}");
        }
    }
}

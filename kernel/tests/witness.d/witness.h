/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * When a vCPU shuts down (a triple fault), says what the processor was given and what it read: the VMCB of
 * the last entries and exits, and both dimensions of the walks of the addresses concerned, as they lie in
 * memory. What is right in all of them cannot be KVM's doing. Included in svm.c.
 */
#define WITNESS_ADDRESS GENMASK_ULL(51, PAGE_SHIFT)
#define WITNESS_VCPUS 8
#define WITNESS_ENTRIES 4

struct witness {
	u64 ns, rip, cr0, cr3, cr4, efer, nested_cr3, nested_ctl;
	u64 exit, exit_rip, exit_cr3, exit_info_2;
	u32 int_ctl, event_inj;
	u8 tlb_ctl;
};

static struct witness witness_of[WITNESS_VCPUS][WITNESS_ENTRIES];
static unsigned int witness_count[WITNESS_VCPUS];

static struct witness *witness_at(struct kvm_vcpu *vcpu, unsigned int back)
{
	unsigned int i = vcpu->vcpu_id % WITNESS_VCPUS;

	return &witness_of[i][(witness_count[i] - back) % WITNESS_ENTRIES];
}

static void witness_entry(struct kvm_vcpu *vcpu)
{
	struct vmcb *b = to_svm(vcpu)->vmcb;

	*witness_at(vcpu, 0) = (struct witness){
		.ns = ktime_get_mono_fast_ns(), .rip = b->save.rip, .cr0 = b->save.cr0, .cr3 = b->save.cr3,
		.cr4 = b->save.cr4, .efer = b->save.efer, .nested_cr3 = b->control.nested_cr3,
		.nested_ctl = b->control.nested_ctl, .int_ctl = b->control.int_ctl,
		.event_inj = b->control.event_inj, .tlb_ctl = b->control.tlb_ctl,
	};
}

static void witness_exit(struct kvm_vcpu *vcpu)
{
	struct vmcb *b = to_svm(vcpu)->vmcb;
	struct witness *w = witness_at(vcpu, 0);

	w->exit = b->control.exit_code;
	w->exit_rip = b->save.rip;
	w->exit_cr3 = b->save.cr3;
	w->exit_info_2 = b->control.exit_info_2;
	witness_count[vcpu->vcpu_id % WITNESS_VCPUS]++;
}

/* One dimension: a walk of tables in the host's memory, nested or shadow ones. */
static void witness_host_walk(u64 root, u64 address)
{
	u64 table = root & WITNESS_ADDRESS;
	int level;

	for (level = PT64_ROOT_4LEVEL; level > 0; level--) {
		u64 entry;

		if (!pfn_valid(table >> PAGE_SHIFT)) {
			pr_emerg("witness:     host L%d at %llx: no memory\n", level, table);
			return;
		}
		entry = READ_ONCE(((u64 *)__va(table))[(address >> (12 + 9 * (level - 1))) & 511]);
		pr_emerg("witness:     host L%d at %llx: %llx\n", level, table, entry);
		if (!(entry & PT_PRESENT_MASK) || (entry & PT_PAGE_SIZE_MASK))
			return;
		table = entry & WITNESS_ADDRESS;
	}
}

/* Both: the guest's tables, and under nested paging where each of their entries is. */
static void witness_walk(struct kvm_vcpu *vcpu, const char *what, u64 address)
{
	struct vmcb *b = to_svm(vcpu)->vmcb;
	u64 table = vcpu->arch.cr3 & WITNESS_ADDRESS;
	int level;

	pr_emerg("witness: walk of %s %llx\n", what, address);
	if (kvm_vcpu_tdp(vcpu))
		pr_emerg("witness:   were nested paging off for a moment:\n");
	witness_host_walk(b->save.cr3, address);
	for (level = PT64_ROOT_4LEVEL; level > 0; level--) {
		u64 entry = 0, at = table + 8 * ((address >> (12 + 9 * (level - 1))) & 511);
		int r = kvm_vcpu_read_guest(vcpu, at, &entry, sizeof(entry));

		pr_emerg("witness:   guest L%d at %llx: %llx (%d)\n", level, at, entry, r);
		if (kvm_vcpu_tdp(vcpu))
			witness_host_walk(b->control.nested_cr3, at);
		if (r || !(entry & PT_PRESENT_MASK) || (entry & PT_PAGE_SIZE_MASK))
			return;
		table = entry & WITNESS_ADDRESS;
	}
}

static void witness_shutdown(struct kvm_vcpu *vcpu)
{
	struct vmcb *b = to_svm(vcpu)->vmcb;
	unsigned int back;

	pr_emerg("witness: vCPU %d shut down in %s mode, CPL %d, the event it did not survive %x, error code %x\n",
		 vcpu->vcpu_id, kvm_vcpu_tdp(vcpu) ? "nested" : "shadow", b->save.cpl,
		 b->control.exit_int_info, b->control.exit_int_info_err);
	for (back = WITNESS_ENTRIES; back > 0; back--) {
		struct witness *w = witness_at(vcpu, back);

		pr_emerg("witness: entry at %llu ns: rip %llx cr0 %llx cr3 %llx cr4 %llx efer %llx nested_cr3 %llx nested_ctl %llx int_ctl %x event_inj %x tlb_ctl %x; exit %llx: rip %llx cr3 %llx info2 %llx\n",
			 w->ns, w->rip, w->cr0, w->cr3, w->cr4, w->efer, w->nested_cr3, w->nested_ctl,
			 w->int_ctl, w->event_inj, w->tlb_ctl, w->exit, w->exit_rip, w->exit_cr3, w->exit_info_2);
	}
	witness_walk(vcpu, "rip", b->save.rip);
	witness_walk(vcpu, "cr2", b->save.cr2);
	witness_walk(vcpu, "idt", b->save.idtr.base);
}

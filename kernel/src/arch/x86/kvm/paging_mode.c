// SPDX-License-Identifier: GPL-2.0-only
/*
 * A paging mode per VM that changes while the guest runs.
 *
 * A switch is a rendezvous. No vCPU may run in the new mode before all have left the old
 * one and the shadow pages have retired: while a shadow page still write-tracks a guest
 * table, a fault raised by the hardware's own walk of that table under nested paging is
 * taken for a store by the guest to the table's address, is emulated as one, and
 * overwrites the guest's page table.
 *
 *   1. Everything that can fail or sleep long is done first: checks, reverse maps.
 *   2. Every vCPU gets a request. Those in KVM_RUN come to kvm_paging_park(), take the new
 *      mode there and wait; those outside are held by their mutex and switched from here.
 *   3. With no vCPU left that could run, shadow pages retire: they are of an old generation
 *      from then on, and what they track counts no more. The VM's mode is set.
 *   4. All are released.
 *   5. Behind them the retired pages are dropped, and what only shadow paging needs is given
 *      back. How long that takes depends on their number; how long the guest stands does not.
 * If a vCPU refuses or does not come in time, all take the old mode again: nothing was
 * dropped yet, and no vCPU has run in between.
 *
 * Locks: paging.mutex, then for a moment kvm->lock; then vcpu->mutex of the vCPUs outside of KVM_RUN (trylock only, as
 * a vCPU in KVM_RUN holds its own), then slots_lock, slots_arch_lock, mmu_lock as the MMU
 * takes them. paging.lock is innermost. A parked vCPU holds its mutex and no SRCU.
 */
#include <linux/debugfs.h>
#include <linux/delay.h>
#include <linux/kvm_host.h>
#include <linux/moduleparam.h>
#include <linux/seq_file.h>
#include <linux/sched/signal.h>

#include "cpuid.h"
#include "kvm_cache_regs.h"
#include "mmu.h"
#include "paging_mode.h"

/* How long vCPUs may take to come. The VM stands still at most as long. */
static unsigned int paging_timeout_ms = 2000;
module_param(paging_timeout_ms, uint, 0644);
MODULE_PARM_DESC(paging_timeout_ms, "Milliseconds after which a switch of the paging mode is given up");

static bool nested_by_default = true;
static const char *const mode_names[] = { "shadow", "nested" };

static int mode_of(const char *word)
{
	return sysfs_match_string(mode_names, word);
}

static int set_default(const char *word, const struct kernel_param *kp)
{
	int mode = mode_of(word);

	if (mode < 0)
		return mode;
	nested_by_default = mode;
	return 0;
}

static int get_default(char *out, const struct kernel_param *kp)
{
	return sysfs_emit(out, "%s\n", mode_names[nested_by_default]);
}

static const struct kernel_param_ops default_ops = { .set = set_default, .get = get_default };
module_param_cb(paging_mode, &default_ops, NULL, 0644);
MODULE_PARM_DESC(paging_mode, "Paging mode of new VMs: nested (default, where the hardware can) or shadow");

/* As debugfs asks for CAP_SYS_ADMIN, so does the capability, unless the administrator trusts who may open /dev/kvm. */
static bool paging_by_vmm;
module_param(paging_by_vmm, bool, 0644);
MODULE_PARM_DESC(paging_by_vmm, "Whether a VMM without CAP_SYS_ADMIN may choose shadow paging for its VMs (default: no)");

/* Set by the vendor module before there is a VM. Empty where the hardware cannot do nested paging. */
static struct kvm_paging_ops vendor;

void kvm_paging_register(const struct kvm_paging_ops *ops)
{
	vendor = *ops;
}
EXPORT_SYMBOL_GPL(kvm_paging_register);

static bool have_both(void)
{
	return tdp_enabled && vendor.enter;
}

static int check_vm(struct kvm *kvm, bool nested)
{
	if (!have_both()) {
		pr_info_ratelimited("kvm: no paging mode but %s here\n", mode_names[tdp_enabled]);
		return -EOPNOTSUPP;
	}
#ifdef KVM_X86_DEFAULT_VM
	if (kvm->arch.vm_type != KVM_X86_DEFAULT_VM) {
		pr_info_ratelimited("kvm [%d]: a guest with encrypted or private memory cannot leave nested paging\n",
				    kvm->userspace_pid);
		return -EOPNOTSUPP;
	}
#endif
	return vendor.check_vm ? vendor.check_vm(kvm, nested) : 0;
}

static void go_nested(struct work_struct *work);
static void tidy(struct work_struct *work);

void kvm_paging_init_vm(struct kvm *kvm)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;

	INIT_WORK(&p->go_nested, go_nested);
	INIT_WORK(&p->tidy, tidy);
	mutex_init(&p->mutex);
	spin_lock_init(&p->lock);
	init_waitqueue_head(&p->released);
	init_waitqueue_head(&p->arrived);
	p->nested = tdp_enabled;
	if (tdp_enabled && !nested_by_default && !check_vm(kvm, false)) {
		p->nested = false;
		if (vendor.apicv_needs_nested)
			kvm_set_apicv_inhibit(kvm, KVM_PAGING_APICV_INHIBIT);
	}
	p->target = p->nested;
	/*
	 * From the start: a guest without paging has a direct root also under shadow
	 * paging, and only an indirect one has them allocated on its way. Without a memory
	 * slot this only makes slots to come have them.
	 */
	if (!p->nested)
		WARN_ON_ONCE(kvm_paging_mmu_alloc_shadow(kvm));
}

/* Its last user is gone. */
void kvm_paging_destroy_vm(struct kvm *kvm)
{
	cancel_work_sync(&kvm->arch.paging.go_nested);
	cancel_work_sync(&kvm->arch.paging.tidy);
}

void kvm_paging_init_vcpu(struct kvm_vcpu *vcpu)
{
	vcpu->arch.paging.nested = READ_ONCE(vcpu->kvm->arch.paging.nested);
	/* A switch may pass before the vCPU is known to it: it looks again before it first runs. */
	kvm_make_request(KVM_REQ_PAGING_MODE, vcpu);
}

/* Brings a vCPU that does not run, and whose mutex the caller or its thread holds, to a mode. */
static int vcpu_set_mode(struct kvm_vcpu *vcpu, bool nested)
{
	int r;

	if (vcpu->arch.paging.nested == nested)
		return 0;
	r = vendor.check_vcpu(vcpu, nested);
	if (r)
		return r;
	if (vendor.leave)
		vendor.leave(vcpu);
	kvm_mmu_unload(vcpu);
	vcpu->arch.paging.nested = nested;
	vendor.enter(vcpu);
	kvm_paging_mmu_reset(vcpu);
	kvm_make_request(KVM_REQ_TLB_FLUSH, vcpu);
	return 0;
}

/* The same for a vCPU outside of KVM_RUN. */
static int idle_vcpu_set_mode(struct kvm_vcpu *vcpu, bool nested)
{
	int r;

	if (vcpu->arch.paging.nested == nested)
		return 0;
	vcpu_load(vcpu);
	r = vcpu_set_mode(vcpu, nested);
	vcpu_put(vcpu);
	return r;
}

static void note(struct kvm_paging_time *time, u64 ns)
{
	time->last = ns;
	time->worst = max(time->worst, ns);
}

/*
 * A vCPU saw KVM_REQ_PAGING_MODE: takes the VM's mode, and waits as long as a switch is
 * under way. Called in KVM_RUN where the vCPU could enter the guest next. Returns 0;
 * -EINTR if the thread is being killed; -EBUSY if the vCPU was set up, before its first run
 * and while the VM was being switched, for what the VM's mode cannot do.
 */
int kvm_paging_park(struct kvm_vcpu *vcpu)
{
	struct kvm_paging_vm *p = &vcpu->kvm->arch.paging;
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;
	bool nested;
	int r = 0;

	/* A memslot update under way waits for readers, and the switch may wait for it. */
	kvm_vcpu_srcu_read_unlock(vcpu);
	for (;;) {
		spin_lock(&p->lock);
		nested = p->switching ? p->target : p->nested;
		spin_unlock(&p->lock);
		r = vcpu_set_mode(vcpu, nested);

		spin_lock(&p->lock);
		if (!p->switching && nested == p->nested) {
			spin_unlock(&p->lock);
			break;
		}
		if (p->switching && nested == p->target) {
			u64 round = p->round;

			if (r && !p->refusal)
				p->refusal = r;
			v->parked_in = round;
			p->parked++;
			wake_up(&p->arrived);
			spin_unlock(&p->lock);

			/* Other signals can wait: the switch ends soon, by its own limit. */
			r = wait_event_killable(p->released, !READ_ONCE(p->switching) || READ_ONCE(p->round) != round);

			spin_lock(&p->lock);
			v->parked_in = 0;
			/* Another switch may be under way by now. It does not count who is still to leave this one. */
			if (p->round == round) {
				if (!r)
					note(&p->resume, ktime_get_ns() - p->released_at);
				if (!--p->parked)
					wake_up(&p->arrived);
			}
			spin_unlock(&p->lock);
			if (r) {
				r = -EINTR;
				break;
			}
		} else {
			/* A switch began or ended meanwhile. */
			spin_unlock(&p->lock);
		}
	}
	/* Whoever runs this vCPU again has to come here first. */
	if (r)
		kvm_make_request(KVM_REQ_PAGING_MODE, vcpu);
	kvm_vcpu_srcu_read_lock(vcpu);
	return r;
}

/* Whether every vCPU is parked or held; takes and switches those outside of KVM_RUN. */
static bool all_stopped(struct kvm *kvm)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	struct kvm_vcpu *vcpu;
	unsigned long i;
	bool all = true;
	int r;

	kvm_for_each_vcpu(i, vcpu, kvm) {
		struct kvm_paging_vcpu *v = &vcpu->arch.paging;

		if (v->held)
			continue;
		spin_lock(&p->lock);
		r = v->parked_in == p->round;
		spin_unlock(&p->lock);
		if (r)
			continue;
		if (!mutex_trylock(&vcpu->mutex)) {
			all = false;
			continue;
		}
		v->held = true;
		r = idle_vcpu_set_mode(vcpu, p->target);
		if (r) {
			spin_lock(&p->lock);
			if (!p->refusal)
				p->refusal = r;
			spin_unlock(&p->lock);
		}
		/* Held all the same; lockdep has room for 48 locks of a task, and there may be more vCPUs. */
		mutex_release(&vcpu->mutex.dep_map, _THIS_IP_);
	}
	return all;
}

/* Waits until no vCPU can run, and all but refusing ones are in the new mode. */
static int quiesce(struct kvm *kvm)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	ktime_t until = ktime_add_ms(ktime_get(), paging_timeout_ms);
	struct kvm_vcpu *vcpu;
	unsigned long i;
	unsigned int in_guest = 0;

	kvm_for_each_vcpu(i, vcpu, kvm)
		in_guest += READ_ONCE(vcpu->mode) == IN_GUEST_MODE;
	p->in_guest_last = in_guest;

	kvm_for_each_vcpu(i, vcpu, kvm) {
		kvm_make_request(KVM_REQ_PAGING_MODE, vcpu);
		/* After it: who wakes up for this one has to find the other. */
		kvm_make_request(KVM_REQ_UNBLOCK, vcpu);
		kvm_vcpu_kick(vcpu);
	}
	for (;;) {
		unsigned int parked;

		spin_lock(&p->lock);
		parked = p->parked;
		spin_unlock(&p->lock);
		if (all_stopped(kvm))
			return READ_ONCE(p->refusal);
		if (READ_ONCE(p->refusal))
			return p->refusal;
		if (signal_pending(current))
			return -EINTR;
		if (ktime_after(ktime_get(), until))
			return -ETIMEDOUT;
		/* Not only for arrivals: a vCPU may leave KVM_RUN, and its mutex, unheard. */
		wait_event_interruptible_hrtimeout(p->arrived, READ_ONCE(p->parked) != parked,
						   ns_to_ktime(50 * NSEC_PER_USEC));
	}
}

static void release(struct kvm *kvm, bool nested)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	struct kvm_vcpu *vcpu;
	unsigned long i;

	kvm_for_each_vcpu(i, vcpu, kvm) {
		if (!vcpu->arch.paging.held)
			continue;
		mutex_acquire(&vcpu->mutex.dep_map, 0, 1, _THIS_IP_);
		WARN_ON_ONCE(idle_vcpu_set_mode(vcpu, nested));
		mutex_release(&vcpu->mutex.dep_map, _THIS_IP_);
	}
	spin_lock(&p->lock);
	p->nested = p->target = nested;
	p->switching = false;
	p->resume.last = 0;
	p->released_at = ktime_get_ns();
	spin_unlock(&p->lock);
	wake_up_all(&p->released);

	kvm_for_each_vcpu(i, vcpu, kvm) {
		if (vcpu->arch.paging.held) {
			vcpu->arch.paging.held = false;
			mutex_acquire(&vcpu->mutex.dep_map, 0, 1, _THIS_IP_);
			mutex_unlock(&vcpu->mutex);
		}
	}
}

static int switch_mode(struct kvm *kvm, bool nested)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	u64 begin, stopped, done;
	bool behind = false;
	int r;

	if (!nested) {
		r = kvm_paging_mmu_alloc_shadow(kvm);
		if (r)
			return r;
	}

	begin = ktime_get_ns();
	/* Under kvm->lock a VM becomes what cannot switch, and looks whether it is being switched. */
	mutex_lock(&kvm->lock);
	r = check_vm(kvm, nested);
	if (!r) {
		spin_lock(&p->lock);
		p->target = nested;
		p->refusal = 0;
		p->parked = 0;
		WRITE_ONCE(p->round, p->round + 1);
		p->switching = true;
		spin_unlock(&p->lock);
	}
	mutex_unlock(&kvm->lock);
	if (r)
		goto stays;

	r = quiesce(kvm);
	stopped = ktime_get_ns();
	if (r) {
		release(kvm, !nested);
		goto stays;
	}

	if (nested) {
		p->shadow_pages_dropped = kvm_paging_mmu_retire_shadow(kvm);
		behind = !kvm_paging_mmu_tracked_by_others(kvm);
		if (!behind)
			kvm_paging_mmu_drop_shadow(kvm);
	} else {
		p->tables_dropped = kvm_paging_mmu_zap_nested(kvm);
	}
	if (vendor.apicv_needs_nested && enable_apicv)
		kvm_set_or_clear_apicv_inhibit(kvm, KVM_PAGING_APICV_INHIBIT, !nested);
	done = ktime_get_ns();
	release(kvm, nested);

	note(&p->quiesce, stopped - begin);
	note(&p->work, done - stopped);
	if (nested) {
		p->to_nested++;
		if (behind) {
			done = ktime_get_ns();
			kvm_paging_mmu_drop_shadow(kvm);
			note(&p->drop, ktime_get_ns() - done);
		}
		queue_work(system_unbound_wq, &p->tidy);
	} else {
		p->to_shadow++;
	}
	/*
	 * Who asked may rely on it, a migration for example, which must not read events of the old mode. If he is
	 * killed, the next switch knows who belongs to this one.
	 */
	wait_event_killable(p->arrived, !READ_ONCE(p->parked));
	return 0;
stays:
	/* What was made for a stay in shadow paging is not needed. */
	if (!nested)
		queue_work(system_unbound_wq, &p->tidy);
	return r;
}

/*
 * Switches a VM and returns when all its vCPUs are released in the new mode, and nothing of the old one is left: 0, or
 * -EOPNOTSUPP, -EBUSY, -ETIMEDOUT, -EINTR, -ENOMEM with everything as before.
 */
int kvm_paging_set_mode(struct kvm *kvm, bool nested)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	int r;

	if (mutex_lock_interruptible(&p->mutex))
		return -EINTR;
	r = 0;
	if (p->nested == nested)
		goto out;
	r = switch_mode(kvm, nested);
	if (r == -EOPNOTSUPP || r == -EBUSY)
		p->refused++;
	else if (r)
		p->rolled_back++;
	if (r == -ETIMEDOUT)
		pr_warn_ratelimited("kvm [%d]: vCPUs did not stop within %u ms, the paging mode stays %s\n",
				    kvm->userspace_pid, paging_timeout_ms, mode_names[p->nested]);
out:
	mutex_unlock(&p->mutex);
	return r;
}

/* Waits for readers, which may take long: not where a switch is waited for. */
static void tidy(struct work_struct *work)
{
	struct kvm_paging_vm *p = container_of(work, struct kvm_paging_vm, tidy);

	kvm_paging_mmu_free_shadow(container_of(p, struct kvm, arch.paging));
}

/* The guest does what only nested paging has. */
static int bring_back(struct kvm *kvm)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	bool was_nested = READ_ONCE(p->nested);
	int r = kvm_paging_set_mode(kvm, true);

	if (!r && !was_nested) {
		p->by_guest++;
		pr_info_ratelimited("kvm [%d]: the guest begins to use what only nested paging has, and goes back to it\n",
				    kvm->userspace_pid);
	}
	return r;
}

static void go_nested(struct work_struct *work)
{
	struct kvm_paging_vm *p = container_of(work, struct kvm_paging_vm, go_nested);

	/* The guest asks again at once. A vCPU that cannot switch now soon can. */
	if (bring_back(container_of(p, struct kvm, arch.paging)))
		msleep(20);
}

/*
 * The guest is about to do what its processor has and shadow paging has not. The VM goes back to
 * nested paging, and the vCPU executes its instruction again, until it is there.
 */
int kvm_paging_go_nested(struct kvm_vcpu *vcpu)
{
	queue_work(system_unbound_wq, &vcpu->kvm->arch.paging.go_nested);
	cond_resched();
	return 1;
}
EXPORT_SYMBOL_GPL(kvm_paging_go_nested);

/*
 * Whether a vCPU may be a hypervisor now. Not under shadow paging, as its VMRUN or VMLAUNCH would fail, and not before
 * the shadow pages of a stay there are gone, as its own guest's tables have to be write-tracked.
 */
bool kvm_paging_can_nest(struct kvm_vcpu *vcpu)
{
	return !tdp_enabled || (kvm_vcpu_tdp(vcpu) && !kvm_paging_tracks_nothing(vcpu->kvm));
}
EXPORT_SYMBOL_GPL(kvm_paging_can_nest);

/* Whether the vCPU may have this EFER as it is now, whoever writes it. */
bool kvm_paging_allows_efer(struct kvm_vcpu *vcpu, u64 efer)
{
	return !(efer & EFER_SVME) || (vcpu->arch.efer & EFER_SVME) || kvm_paging_can_nest(vcpu);
}

/* The same of CR4: shadow tables have no protection keys. */
bool kvm_paging_allows_cr4(struct kvm_vcpu *vcpu, unsigned long cr4)
{
	return !(cr4 & X86_CR4_PKE) || !tdp_enabled || kvm_vcpu_tdp(vcpu);
}

/* Whether a guest's write has to wait for nested paging: else it is right now, or wrong in either mode. */
bool kvm_paging_wrmsr_needs_nested(struct kvm_vcpu *vcpu, u32 msr, u64 data)
{
	return msr == MSR_EFER && !kvm_paging_allows_efer(vcpu, data) && kvm_cpu_cap_has(X86_FEATURE_SVM) &&
	       guest_cpuid_has(vcpu, X86_FEATURE_SVM);
}

bool kvm_paging_cr4_needs_nested(struct kvm_vcpu *vcpu, unsigned long cr4)
{
	return !kvm_paging_allows_cr4(vcpu, cr4) && kvm_cpu_cap_has(X86_FEATURE_PKU) &&
	       guest_cpuid_has(vcpu, X86_FEATURE_PKU);
}
EXPORT_SYMBOL_GPL(kvm_paging_cr4_needs_nested);

/* The state of a vCPU by user space, such as that of a guest that migrates here. */
bool kvm_paging_allows_sregs(struct kvm_vcpu *vcpu, u64 efer, unsigned long cr4)
{
	vcpu->arch.paging.wants_nested = kvm_paging_wrmsr_needs_nested(vcpu, MSR_EFER, efer) ||
					 kvm_paging_cr4_needs_nested(vcpu, cr4);
	return kvm_paging_allows_efer(vcpu, efer) && kvm_paging_allows_cr4(vcpu, cr4);
}

/* The same of system management mode. What EFER and CR4 are after it is in the guest's memory. */
bool kvm_paging_allows_smm(struct kvm_vcpu *vcpu)
{
	vcpu->arch.paging.wants_nested = kvm_paging_wrmsr_needs_nested(vcpu, MSR_EFER, EFER_SVME) ||
					 kvm_paging_cr4_needs_nested(vcpu, X86_CR4_PKE);
	vcpu->arch.paging.smm_by_user |= !vcpu->arch.paging.wants_nested;
	return !vcpu->arch.paging.wants_nested;
}

/*
 * At the end of a call of user space that sets state: whether the VM went back to nested paging for it, and the call is to be
 * made again. The switch needs the vCPU's mutex; nothing was set yet, so it may be dropped. A VM that somebody always
 * switches is left alone in the end.
 */
bool kvm_paging_went_nested(struct kvm_vcpu *vcpu, unsigned int ioctl)
{
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;
	bool wants = v->wants_nested && v->tries < 3;
	int r;

	if (ioctl != KVM_SET_SREGS && ioctl != KVM_SET_SREGS2 && ioctl != KVM_SET_NESTED_STATE &&
	    ioctl != KVM_SET_VCPU_EVENTS)
		return false;
	v->wants_nested = false;
	v->tries = wants ? v->tries + 1 : 0;
	if (!wants)
		return false;
	mutex_unlock(&vcpu->mutex);
	r = bring_back(vcpu->kvm);
	mutex_lock(&vcpu->mutex);
	return !r;
}

static bool may_choose_shadow(void)
{
	return paging_by_vmm || capable(CAP_SYS_ADMIN);
}

int kvm_paging_check_extension(struct kvm *kvm)
{
	return have_both() && may_choose_shadow() ? 3 : BIT(tdp_enabled);
}

int kvm_paging_enable_cap(struct kvm *kvm, struct kvm_enable_cap *cap)
{
	if (cap->args[0] > 1 || cap->args[1] || cap->args[2] || cap->args[3])
		return -EINVAL;
	if (!cap->args[0] && !may_choose_shadow())
		return -EPERM;
	return kvm_paging_set_mode(kvm, cap->args[0]);
}

static int mode_show(struct seq_file *m, void *unused)
{
	struct kvm_paging_vm *p = &((struct kvm *)m->private)->arch.paging;
	bool nested, target;

	spin_lock(&p->lock);
	nested = p->nested;
	target = p->target;
	spin_unlock(&p->lock);
	if (nested == target)
		seq_printf(m, "%s\n", mode_names[nested]);
	else
		seq_printf(m, "%s -> %s\n", mode_names[nested], mode_names[target]);
	return 0;
}

static int stats_show(struct seq_file *m, void *unused)
{
	struct kvm *kvm = m->private;
	struct kvm_paging_vm *p = &kvm->arch.paging;
	/* Not under the mutex: who reads must not wait for a switch. */
	const struct { const char *name; u64 value; } values[] = {
		{ "switches_to_shadow", READ_ONCE(p->to_shadow) },
		{ "switches_to_nested", READ_ONCE(p->to_nested) },
		{ "switches_by_guest", READ_ONCE(p->by_guest) },
		{ "refused", READ_ONCE(p->refused) },
		{ "rolled_back", READ_ONCE(p->rolled_back) },
		{ "vcpus", atomic_read(&kvm->online_vcpus) },
		{ "vcpus_in_guest_last", READ_ONCE(p->in_guest_last) },
		{ "quiesce_ns_last", READ_ONCE(p->quiesce.last) },
		{ "quiesce_ns_worst", READ_ONCE(p->quiesce.worst) },
		{ "switch_ns_last", READ_ONCE(p->work.last) },
		{ "switch_ns_worst", READ_ONCE(p->work.worst) },
		{ "resume_ns_last", READ_ONCE(p->resume.last) },
		{ "resume_ns_worst", READ_ONCE(p->resume.worst) },
		{ "drop_ns_last", READ_ONCE(p->drop.last) },
		{ "drop_ns_worst", READ_ONCE(p->drop.worst) },
		{ "tables_kept", kvm_paging_mmu_nested_tables(kvm) },
		{ "tables_dropped", READ_ONCE(p->tables_dropped) },
		{ "shadow_pages", READ_ONCE(kvm->arch.n_used_mmu_pages) },
		{ "shadow_pages_dropped", READ_ONCE(p->shadow_pages_dropped) },
	};
	int i;

	for (i = 0; i < ARRAY_SIZE(values); i++)
		seq_printf(m, "%s %llu\n", values[i].name, values[i].value);
	return 0;
}

static int open_for(struct file *file, struct kvm *kvm, int (*show)(struct seq_file *, void *))
{
	int r;

	/* The VM's directory outlives its last user by a moment. */
	if (!kvm_get_kvm_safe(kvm))
		return -ENOENT;
	r = single_open(file, show, kvm);
	if (r < 0)
		kvm_put_kvm(kvm);
	return r;
}

static int mode_open(struct inode *inode, struct file *file)
{
	return open_for(file, inode->i_private, mode_show);
}

static int stats_open(struct inode *inode, struct file *file)
{
	return open_for(file, inode->i_private, stats_show);
}

static int paging_release(struct inode *inode, struct file *file)
{
	kvm_put_kvm(inode->i_private);
	return single_release(inode, file);
}

static ssize_t mode_write(struct file *file, const char __user *from, size_t n, loff_t *at)
{
	struct kvm *kvm = file_inode(file)->i_private;
	char word[16];
	int r;

	/* The debugfs mode keeps others out unless someone has changed it. */
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	if (n >= sizeof(word))
		return -EINVAL;
	if (copy_from_user(word, from, n))
		return -EFAULT;
	word[n] = 0;
	r = mode_of(word);
	if (r < 0)
		return -EINVAL;
	r = kvm_paging_set_mode(kvm, r);
	return r ? r : n;
}

static const struct file_operations mode_fops = {
	.owner = THIS_MODULE,
	.open = mode_open,
	.read = seq_read,
	.write = mode_write,
	.llseek = seq_lseek,
	.release = paging_release,
};

static const struct file_operations stats_fops = {
	.owner = THIS_MODULE,
	.open = stats_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = paging_release,
};

void kvm_paging_create_debugfs(struct kvm *kvm)
{
	debugfs_create_file("paging_mode", 0600, kvm->debugfs_dentry, kvm, &mode_fops);
	debugfs_create_file("paging_stats", 0400, kvm->debugfs_dentry, kvm, &stats_fops);
}

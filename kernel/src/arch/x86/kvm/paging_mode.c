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
 * If a vCPU refuses, or a vCPU or a lock does not come in time, all take the old mode again: nothing
 * was dropped yet, and no vCPU has run in between. The way back cannot fail.
 *
 * Locks: paging.mutex, then for a moment kvm->lock; then, by trylock until the switch's limit is over, vcpu->mutex of the
 * vCPUs outside of KVM_RUN, slots_lock and mmu_lock (who holds them may wait for the switch, or hold them long); then
 * slots_arch_lock and mmu_lock as the MMU takes them. paging.lock is innermost. A parked vCPU holds its mutex and no
 * SRCU. paging_windows.h lists the looks at shared state without its lock.
 */
#include <linux/kvm_host.h>
#include <linux/moduleparam.h>
#include <linux/sched/signal.h>

#include "paging_versions.h"
#include "mmu.h"
#include "paging_mode.h"

/* How long vCPUs may take to come. The VM stands still at most as long. */
static unsigned int paging_timeout_ms = 2000;
module_param(paging_timeout_ms, uint, 0644);
MODULE_PARM_DESC(paging_timeout_ms, "Milliseconds after which a switch of the paging mode is given up");

static bool nested_by_default = true;
const char *const kvm_paging_names[] = { "shadow", "nested" };

int kvm_paging_mode_of(const char *word)
{
	return sysfs_match_string(kvm_paging_names, word);
}

static int set_default(const char *word, const struct kernel_param *kp)
{
	int mode = kvm_paging_mode_of(word);

	if (mode < 0)
		return mode;
	nested_by_default = mode;
	return 0;
}

static int get_default(char *out, const struct kernel_param *kp)
{
	return sysfs_emit(out, "%s\n", kvm_paging_names[nested_by_default]);
}

static const struct kernel_param_ops default_ops = { .set = set_default, .get = get_default };
module_param_cb(paging_mode, &default_ops, NULL, 0644);
MODULE_PARM_DESC(paging_mode, "Paging mode of new VMs: nested (default, where the hardware can) or shadow");

static void tidy(struct work_struct *work);

void kvm_paging_init_vm(struct kvm *kvm)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;

	INIT_WORK(&p->go_nested, kvm_paging_go_nested_work);
	INIT_WORK(&p->tidy, tidy);
	mutex_init(&p->mutex);
	spin_lock_init(&p->lock);
	init_waitqueue_head(&p->released);
	init_waitqueue_head(&p->arrived);
	p->nested = tdp_enabled;
	if (tdp_enabled && !nested_by_default && kvm_paging_check_vm(kvm, false) == KVM_PAGING_FINE) {
		p->nested = false;
		if (kvm_paging_vendor.apicv_needs_nested)
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
	kvm_paging_window(birth);
	/* A switch may pass before the vCPU is known to it: it looks again when it is, and before it first runs. */
	kvm_make_request(KVM_REQ_PAGING_MODE, vcpu);
}

/* Brings a vCPU that does not run, and whose mutex the caller or its thread holds, to a mode. */
static void vcpu_set_mode(struct kvm_vcpu *vcpu, bool nested)
{
	if (vcpu->arch.paging.nested == nested)
		return;
	/* A guest's guest has tables and a VMCB of its own, and is refused before: kvm_paging_can_nest(). */
	if (KVM_BUG_ON(is_guest_mode(vcpu), vcpu->kvm))
		return;
	if (kvm_paging_vendor.leave)
		kvm_paging_vendor.leave(vcpu);
	kvm_mmu_unload(vcpu);
	if (nested)
		kvm_paging_mmu_wake(vcpu);
	else
		kvm_paging_mmu_rest(vcpu);
	/* What failed in the last stay may succeed in this one. */
	if (!nested)
		vcpu->arch.paging.needs_memory = false;
	WRITE_ONCE(vcpu->arch.paging.nested, nested);
	kvm_paging_vendor.enter(vcpu);
	kvm_paging_mmu_reset(vcpu);
	kvm_make_request(KVM_REQ_TLB_FLUSH, vcpu);
}

/* The same for a vCPU outside of KVM_RUN. */
static void idle_vcpu_set_mode(struct kvm_vcpu *vcpu, bool nested)
{
	if (vcpu->arch.paging.nested == nested)
		return;
	vcpu_load(vcpu);
	vcpu_set_mode(vcpu, nested);
	vcpu_put(vcpu);
}

/* Takes the mode of the switch under way, unless the vCPU has what that mode lacks: then that switch ends. */
static void join(struct kvm_vcpu *vcpu, bool nested, u64 round)
{
	struct kvm_paging_vm *p = &vcpu->kvm->arch.paging;
	enum kvm_paging_refusal why = KVM_PAGING_FINE;

	if (vcpu->arch.paging.nested != nested) {
		why = kvm_paging_check_vcpu(vcpu, nested);
		if (why == KVM_PAGING_FINE && !nested && !kvm_paging_mmu_fill(vcpu))
			why = KVM_PAGING_MEMORY;
	}
	if (why == KVM_PAGING_FINE) {
		vcpu_set_mode(vcpu, nested);
		return;
	}
	spin_lock(&p->lock);
	if (p->round == round && p->refusal == KVM_PAGING_FINE) {
		p->refused_by = vcpu->vcpu_id;
		WRITE_ONCE(p->refusal, why);
	}
	spin_unlock(&p->lock);
}

/*
 * A new vCPU is in the list of vCPUs, and in the mode of the VM as it was some time ago. User space does not have its
 * file yet, but may guess the number: until here the vCPU neither runs nor gets what only nested paging has.
 */
void kvm_paging_vcpu_created(struct kvm_vcpu *vcpu)
{
	struct kvm_paging_vm *p = &vcpu->kvm->arch.paging;
	bool switching, nested;

	do {
		if (wait_event_killable(p->released, !READ_ONCE(p->switching)))
			return;
		kvm_paging_window(created);
		if (mutex_lock_killable(&vcpu->mutex))
			return;
		spin_lock(&p->lock);
		switching = p->switching;
		nested = p->nested;
		spin_unlock(&p->lock);
		/* A switch that begins now cannot end without this mutex. */
		if (!switching) {
			idle_vcpu_set_mode(vcpu, nested);
			WRITE_ONCE(vcpu->arch.paging.known, true);
		}
		mutex_unlock(&vcpu->mutex);
	} while (switching);
}

static void note(struct kvm_paging_time *time, u64 ns)
{
	time->last = ns;
	time->worst = max(time->worst, ns);
}

/*
 * A vCPU saw KVM_REQ_PAGING_MODE: takes the VM's mode, and waits as long as a switch is under way, or until the VM is
 * in nested paging if that is what the vCPU needs. Called in KVM_RUN where the vCPU could enter the guest next. Returns
 * 0; -EINTR if the thread is being killed, or has a signal while the vCPU waits for nested paging; -EIO if the VM could
 * not go there, and the guest cannot be told; -EAGAIN if the vCPU is not yet made.
 */
int kvm_paging_park(struct kvm_vcpu *vcpu)
{
	struct kvm_paging_vm *p = &vcpu->kvm->arch.paging;
	struct kvm_paging_vcpu *v = &vcpu->arch.paging;
	bool nested, switching;
	u64 round;
	int r = 0;

	/* A memslot update under way waits for readers, and the switch may wait for it. */
	kvm_vcpu_srcu_read_unlock(vcpu);
	for (;;) {
		/* See kvm_paging_vcpu_created(), which waits for this vCPU's mutex. */
		if (!v->known) {
			r = -EAGAIN;
			break;
		}
		spin_lock(&p->lock);
		switching = p->switching;
		nested = switching ? p->target : p->nested;
		round = p->round;
		spin_unlock(&p->lock);
		kvm_paging_window(park);
		if (switching)
			join(vcpu, nested, round);
		else
			/*
			 * Back from a switch that was given up: the vCPU was in this mode, and has neither run since nor got
			 * what this mode lacks.
			 */
			vcpu_set_mode(vcpu, nested);
		if (READ_ONCE(vcpu->kvm->vm_bugged)) {
			r = -EIO;
			break;
		}
		kvm_paging_window(parked);

		spin_lock(&p->lock);
		if (!p->switching && nested == p->nested && v->nested == nested) {
			spin_unlock(&p->lock);
			r = kvm_paging_await_nested(vcpu);
			if (r <= 0)
				break;
		} else if (p->switching && p->round == round) {
			v->parked_in = round;
			p->parked++;
			wake_up(&p->arrived);
			spin_unlock(&p->lock);

			/* Other signals can wait: the switch ends soon, by its own limit. */
			r = wait_event_killable(p->released, !READ_ONCE(p->switching) || READ_ONCE(p->round) != round);
			kvm_paging_window(woken);

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
	bool all = true, parked;

	kvm_for_each_vcpu(i, vcpu, kvm) {
		struct kvm_paging_vcpu *v = &vcpu->arch.paging;

		if (v->held)
			continue;
		spin_lock(&p->lock);
		parked = v->parked_in == p->round;
		spin_unlock(&p->lock);
		if (parked)
			continue;
		kvm_paging_window(hold);
		if (!mutex_trylock(&vcpu->mutex)) {
			all = false;
			continue;
		}
		v->held = true;
		vcpu_load(vcpu);
		join(vcpu, p->target, p->round);
		vcpu_put(vcpu);
		/* Held all the same; lockdep has room for 48 locks of a task, and there may be more vCPUs. */
		mutex_release(&vcpu->mutex.dep_map, _THIS_IP_);
	}
	return all;
}

/*
 * Waits until no vCPU can run, all but refusing ones are in the new mode, and the locks of kvm_paging_mmu_trylock() are
 * taken: 0, or 1 if a vCPU refuses, or an error, without these locks then.
 */
static int quiesce(struct kvm *kvm)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	ktime_t until = ktime_add_ms(ktime_get(), paging_timeout_ms);
	struct kvm_vcpu *vcpu;
	unsigned long i;
	unsigned int in_guest = 0;

	kvm_for_each_vcpu(i, vcpu, kvm)
		in_guest += READ_ONCE(vcpu->mode) == IN_GUEST_MODE;
	WRITE_ONCE(p->in_guest_last, in_guest);

	kvm_for_each_vcpu(i, vcpu, kvm) {
		kvm_make_request(KVM_REQ_PAGING_MODE, vcpu);
		/* After it: who wakes up for this one has to find the other. */
		kvm_make_request(KVM_REQ_UNBLOCK, vcpu);
		kvm_vcpu_kick(vcpu);
	}
	for (;;) {
		unsigned int parked;
		bool stopped;

		spin_lock(&p->lock);
		parked = p->parked;
		spin_unlock(&p->lock);
		stopped = all_stopped(kvm);
		if (READ_ONCE(p->refusal) != KVM_PAGING_FINE)
			return 1;
		if (stopped) {
			kvm_paging_window(stopped);
			if (kvm_paging_mmu_trylock(kvm, p->target))
				return 0;
		}
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
		idle_vcpu_set_mode(vcpu, nested);
		mutex_release(&vcpu->mutex.dep_map, _THIS_IP_);
	}
	kvm_paging_window(release);
	spin_lock(&p->lock);
	WRITE_ONCE(p->nested, nested);
	p->target = nested;
	WRITE_ONCE(p->switching, false);
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
	enum kvm_paging_refusal why;
	u64 begin, stopped, done;
	bool behind = false;
	int vcpu_id, r;

	/* Before anything is made and anybody stops: most refusals are lasting ones. */
	why = kvm_paging_forecast(kvm, nested, &vcpu_id);
	if (why != KVM_PAGING_FINE)
		return kvm_paging_refuse(kvm, why, vcpu_id);
	if (!nested) {
		r = kvm_paging_mmu_alloc_shadow(kvm);
		if (r)
			goto stays;
	}

	begin = ktime_get_ns();
	/* Under kvm->lock a VM becomes what cannot switch, and looks whether it is being switched. */
	mutex_lock(&kvm->lock);
	why = kvm_paging_check_vm(kvm, nested);
	if (why == KVM_PAGING_FINE) {
		spin_lock(&p->lock);
		p->target = nested;
		p->refusal = KVM_PAGING_FINE;
		p->refused_by = -1;
		p->parked = 0;
		WRITE_ONCE(p->round, p->round + 1);
		WRITE_ONCE(p->switching, true);
		spin_unlock(&p->lock);
	}
	mutex_unlock(&kvm->lock);
	if (why != KVM_PAGING_FINE) {
		r = kvm_paging_refuse(kvm, why, -1);
		goto stays;
	}
	/* A vCPU that waits for nested paging stands already, and has to say so. */
	wake_up_all(&p->released);
	kvm_paging_window(checked);

	r = quiesce(kvm);
	stopped = ktime_get_ns();
	if (!r && !nested) {
		/* A device may have come since, see kvm_paging_noncoherent_dma(). */
		why = kvm_paging_check_vm(kvm, nested);
		if (why != KVM_PAGING_FINE) {
			kvm_paging_mmu_unlock(kvm);
			spin_lock(&p->lock);
			WRITE_ONCE(p->refusal, why);
			spin_unlock(&p->lock);
			r = 1;
		}
	}
	if (r) {
		release(kvm, !nested);
		if (r > 0)
			r = kvm_paging_refuse(kvm, p->refusal, p->refused_by);
		goto stays;
	}

	if (nested) {
		WRITE_ONCE(p->shadow_pages_dropped, kvm_paging_mmu_retire_shadow(kvm));
		behind = !kvm_paging_mmu_tracked_by_others(kvm);
		if (!behind)
			kvm_paging_mmu_drop_shadow(kvm);
	} else {
		WRITE_ONCE(p->tables_dropped, kvm_paging_mmu_zap_nested(kvm));
	}
	if (kvm_paging_vendor.apicv_needs_nested && enable_apicv)
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
		queue_work(KVM_PAGING_WQ, &p->tidy);
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
		queue_work(KVM_PAGING_WQ, &p->tidy);
	return r;
}

/*
 * Switches a VM and returns when all its vCPUs are released in the new mode, and nothing of the old one is left: 0, or
 * -EOPNOTSUPP, -EBUSY, -ETIMEDOUT, -EINTR, -ENOMEM with everything as before.
 */
int kvm_paging_set_mode(struct kvm *kvm, bool nested)
{
	struct kvm_paging_vm *p = &kvm->arch.paging;
	bool there;
	int r = 0;

	if (mutex_lock_interruptible(&p->mutex))
		return -EINTR;
	spin_lock(&p->lock);
	p->chosen = true;
	there = p->nested == nested;
	spin_unlock(&p->lock);
	if (!there)
		r = switch_mode(kvm, nested);
	switch (r) {
	case -ETIMEDOUT:
		WRITE_ONCE(p->timed_out, p->timed_out + 1);
		pr_warn_ratelimited("kvm [%d]: vCPUs did not stop within %u ms, or a change of memory slots did not end: the paging mode stays %s\n",
				    kvm->userspace_pid, paging_timeout_ms, kvm_paging_names[!nested]);
		break;
	case -EINTR:
		WRITE_ONCE(p->interrupted, p->interrupted + 1);
		break;
	case -ENOMEM:
		WRITE_ONCE(p->no_memory, p->no_memory + 1);
		break;
	}
	mutex_unlock(&p->mutex);
	return r;
}

/* Waits for readers, which may take long: not where a switch is waited for. */
static void tidy(struct work_struct *work)
{
	struct kvm_paging_vm *p = container_of(work, struct kvm_paging_vm, tidy);

	kvm_paging_window(tidy);
	kvm_paging_mmu_free_shadow(container_of(p, struct kvm, arch.paging));
}

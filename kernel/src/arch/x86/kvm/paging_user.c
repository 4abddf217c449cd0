// SPDX-License-Identifier: GPL-2.0-only
/*
 * How user space sees and switches a VM's paging mode: the capability, and in debugfs paging_mode, which switches the VM
 * when written, paging_stats and paging_refusal. docs/reference/kernel-interface.md describes them.
 */
#include <linux/debugfs.h>
#include <linux/kvm_host.h>
#include <linux/moduleparam.h>
#include <linux/seq_file.h>

#include "mmu.h"
#include "paging_fixes.h"
#include "paging_mode.h"
#include "paging_versions.h"

/* As debugfs asks for CAP_SYS_ADMIN, so does the capability, unless the administrator trusts who may open /dev/kvm. */
static bool paging_by_vmm;
module_param(paging_by_vmm, bool, 0644);
MODULE_PARM_DESC(paging_by_vmm, "Whether a VMM without CAP_SYS_ADMIN may choose shadow paging for its VMs (default: no)");

/* What kernel/build saw in the source. Who loads the modules cannot claim more. */
static int set_paging_fixes(const char *value, const struct kernel_param *param)
{
	return -EPERM;
}

static int get_paging_fixes(char *buffer, const struct kernel_param *param)
{
	return sysfs_emit(buffer, "%s\n", KVM_PAGING_FIXES);
}

static const struct kernel_param_ops paging_fixes_ops = { .set = set_paging_fixes, .get = get_paging_fixes };
module_param_cb(paging_fixes, &paging_fixes_ops, NULL, 0444);
MODULE_PARM_DESC(paging_fixes, "Public holes of shadow paging that are not in these modules");

static bool may_choose_shadow(void)
{
	return paging_by_vmm || capable(CAP_SYS_ADMIN);
}

int kvm_paging_check_extension(struct kvm *kvm)
{
	return kvm_paging_have_both() && may_choose_shadow() ? 3 : BIT(tdp_enabled);
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
		seq_printf(m, "%s\n", kvm_paging_names[nested]);
	else
		seq_printf(m, "%s -> %s\n", kvm_paging_names[nested], kvm_paging_names[target]);
	return 0;
}

/* What would refuse a switch to the other mode now. */
static int refusal_show(struct seq_file *m, void *unused)
{
	struct kvm *kvm = m->private;
	enum kvm_paging_refusal why;
	int vcpu_id;

	why = kvm_paging_forecast(kvm, !READ_ONCE(kvm->arch.paging.nested), &vcpu_id);
	seq_puts(m, kvm_paging_refusal_words[why]);
	if (vcpu_id >= 0)
		seq_printf(m, " vcpu %d", vcpu_id);
	seq_putc(m, '\n');
	return 0;
}

static u64 all_refused(struct kvm_paging_vm *p)
{
	u64 all = 0;
	int i;

	for (i = 0; i < KVM_PAGING_REFUSALS; i++)
		all += READ_ONCE(p->refused[i]);
	return all;
}

static int stats_show(struct seq_file *m, void *unused)
{
	struct kvm *kvm = m->private;
	struct kvm_paging_vm *p = &kvm->arch.paging;
	/* Not under the mutex: who reads must not wait for a switch. */
	u64 timed_out = READ_ONCE(p->timed_out), interrupted = READ_ONCE(p->interrupted);
	u64 no_memory = READ_ONCE(p->no_memory), refused = all_refused(p);
	const struct { const char *name; u64 value; } values[] = {
		{ "switches_to_shadow", READ_ONCE(p->to_shadow) },
		{ "switches_to_nested", READ_ONCE(p->to_nested) },
		{ "switches_by_guest", READ_ONCE(p->by_guest) },
		{ "by_guest_failed", READ_ONCE(p->by_guest_failed) },
		{ "back_for_memory", READ_ONCE(p->back_for_memory) },
		{ "refused", refused },
		{ "refused_host", READ_ONCE(p->refused[KVM_PAGING_HOST]) },
		{ "refused_encrypted", READ_ONCE(p->refused[KVM_PAGING_ENCRYPTED]) },
		{ "refused_dma", READ_ONCE(p->refused[KVM_PAGING_DMA]) },
		{ "refused_tss", READ_ONCE(p->refused[KVM_PAGING_TSS]) },
		{ "refused_hypervisor", READ_ONCE(p->refused[KVM_PAGING_HYPERVISOR]) },
		{ "refused_keys", READ_ONCE(p->refused[KVM_PAGING_KEYS]) },
		{ "refused_smm", READ_ONCE(p->refused[KVM_PAGING_SMM]) },
		{ "refused_real_mode", READ_ONCE(p->refused[KVM_PAGING_REAL_MODE]) },
		{ "rolled_back", timed_out + interrupted + no_memory },
		{ "timed_out", timed_out },
		{ "interrupted", interrupted },
		{ "no_memory", no_memory },
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
		{ "shadow_pages", READ_ONCE(kvm_paging_shadow_pages(kvm)) },
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

static int refusal_open(struct inode *inode, struct file *file)
{
	return open_for(file, inode->i_private, refusal_show);
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
	r = kvm_paging_mode_of(word);
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

static const struct file_operations refusal_fops = {
	.owner = THIS_MODULE,
	.open = refusal_open,
	.read = seq_read,
	.llseek = seq_lseek,
	.release = paging_release,
};

void kvm_paging_create_debugfs(struct kvm *kvm)
{
	debugfs_create_file("paging_mode", 0600, kvm->debugfs_dentry, kvm, &mode_fops);
	debugfs_create_file("paging_stats", 0400, kvm->debugfs_dentry, kvm, &stats_fops);
	debugfs_create_file("paging_refusal", 0400, kvm->debugfs_dentry, kvm, &refusal_fops);
}

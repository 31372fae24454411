//! Which faults come when. Derived from a seed, so that a run can be repeated.

use std::time::Duration;

use super::{dice::Dice, process::Role, proxy::Mode};

/// What a storm is made of.
#[derive(Clone, Debug)]
pub struct Plan {
    pub name: &'static str,
    pub seed: u64,
    /// Turns that are asked for over `duration`. Their children come on top.
    pub turns: usize,
    pub duration: Duration,
    pub lease: Duration,
    /// Kills of workers, tools, orchestrators, sweeps and relays.
    pub kills: usize,
    /// Freezes, each longer than the lease.
    pub freezes: usize,
    pub nats_kills: usize,
    pub postgres_kills: usize,
    /// Partitions between a process and PostgreSQL, each longer than the lease.
    pub partitions: usize,
    pub streams_lost: usize,
    /// The share of transactions with more than one statement that are delayed before their commit. Those of sweeps are not: sweeps are timed.
    pub slow: f64,
    /// Whether NATS does not run at all.
    pub without_nats: bool,
    /// What happens to doorbells on the way.
    pub bells: Mode,
    /// Whether claims must come within two seconds.
    pub prompt: bool,
    /// How long the remaining work may take before the run ends anyway.
    pub patience: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    Kill(Role, usize),
    Freeze(Role, usize, Duration),
    Partition(Role, usize, Mode, Duration),
    KillNats(Duration),
    KillPostgres(Duration),
    LoseStream,
}

/// Returns the number of processes of a role.
pub const fn strength(role: Role) -> usize {
    match role {
        Role::Worker => 4,
        // Two are not enough: one may be frozen while the other is cut off. Then no sweep runs, and no process is taken for lost.
        Role::Sweep => 3,
        Role::Tool | Role::Orchestrator | Role::Relay => 2,
    }
}

const MOSTLY_WORKERS: [Role; 8] = [
    Role::Worker,
    Role::Worker,
    Role::Worker,
    Role::Tool,
    Role::Orchestrator,
    Role::Orchestrator,
    Role::Sweep,
    Role::Relay,
];

impl Plan {
    /// Returns the mode of the proxy to PostgreSQL while there is no other fault.
    pub fn calm(&self, role: Role) -> Mode {
        if self.slow > 0.0 && role != Role::Sweep { Mode::SlowCommits { share: self.slow } } else { Mode::Pass }
    }

    /// Returns the faults, in order of time.
    pub fn schedule(&self) -> Vec<(Duration, Fault)> {
        let mut dice = Dice::new(self.seed);
        let mut faults = Vec::new();
        let mut add = |n: usize, make: &mut dyn FnMut(&mut Dice) -> Fault| {
            for _ in 0..n {
                let at = dice.between(Duration::from_secs(2).min(self.duration), self.duration);
                faults.push((at, make(&mut dice)));
            }
        };
        let place = |dice: &mut Dice, roles: &[Role]| {
            let role = roles[dice.one_of(roles.len())];
            (role, dice.one_of(strength(role)))
        };
        let beyond = |dice: &mut Dice| dice.between(self.lease + self.lease / 4, self.lease * 2);
        let pause = |dice: &mut Dice| dice.between(Duration::ZERO, Duration::from_millis(800));
        add(self.kills, &mut |dice| {
            let (role, number) = place(dice, &MOSTLY_WORKERS);
            Fault::Kill(role, number)
        });
        add(self.freezes, &mut |dice| {
            let (role, number) = place(dice, &MOSTLY_WORKERS);
            Fault::Freeze(role, number, beyond(dice))
        });
        add(self.partitions, &mut |dice| {
            let (role, number) = place(dice, &MOSTLY_WORKERS);
            let mode = if dice.chance(0.5) { Mode::Stall } else { Mode::LoseAnswers };
            Fault::Partition(role, number, mode, beyond(dice))
        });
        add(self.nats_kills, &mut |dice| Fault::KillNats(pause(dice)));
        add(self.postgres_kills, &mut |dice| Fault::KillPostgres(pause(dice)));
        add(self.streams_lost, &mut |_| Fault::LoseStream);
        faults.sort_by_key(|(at, _)| *at);
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_storm() {
        let plan = Plan {
            name: "test",
            seed: 7,
            turns: 10,
            duration: Duration::from_secs(60),
            lease: Duration::from_secs(4),
            kills: 20,
            freezes: 4,
            nats_kills: 2,
            postgres_kills: 1,
            partitions: 3,
            streams_lost: 1,
            slow: 0.0,
            without_nats: false,
            bells: Mode::Pass,
            prompt: false,
            patience: Duration::ZERO,
        };
        let schedule = plan.schedule();
        assert_eq!(schedule.len(), 31);
        assert_eq!(schedule, plan.schedule());
        assert!(schedule.is_sorted_by_key(|(at, _)| *at));
        assert_ne!(schedule, Plan { seed: 8, ..plan }.schedule());
    }
}

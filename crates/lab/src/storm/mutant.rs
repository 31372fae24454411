//! Databases that are broken on purpose. A storm that does not notice is worth nothing.

use anyhow::{Result, ensure};
use sqlx::{AssertSqlSafe, PgConnection};
use waybill_kernel::migrate;

/// One fault in the transitions: texts and what stands there instead.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    pub name: &'static str,
    pub says: &'static str,
    /// The figures of which one must fall short.
    pub shows: &'static [&'static str],
    changes: &'static [(&'static str, &'static str)],
}

pub const MUTANTS: [Mutant; 3] = [
    Mutant {
        name: "no-fence",
        says: "whoever once had the turn may write while it runs",
        shows: &[
            "claims that two had under one token",
            "steps taken twice",
            "steps written under an older claim than the step before",
        ],
        changes: &[(
            "and h.turn_epoch = p_epoch and h.claim_token = p_token and h.status = 'running'",
            "and h.status = 'running'",
        )],
    },
    Mutant {
        name: "result-twice",
        says: "an answer is applied although the call was answered before",
        shows: &["results applied twice"],
        changes: &[
            ("    return query select 'dropped'::text, v_turn, null::text;\n    return;\n  end if;", "  end if;"),
            (
                "'response', v_turn, v_agent, v_head.turn_epoch, c_ids[1], p_status);",
                "'response', v_turn, v_agent, v_head.turn_epoch, c_ids[1], p_status) on conflict do nothing;",
            ),
        ],
    },
    Mutant {
        name: "lost-turn",
        says: "a turn that is taken from a dead worker is not armed again",
        shows: &["turns that have not ended"],
        changes: &[(
            "     set status = case when v_waits then 'deferred' else 'pending' end, inbox_seq = state.place_of_begun(),\n         next_retry_at",
            "     set status = 'deferred',\n         next_retry_at",
        )],
    },
];

impl Mutant {
    pub fn find(name: &str) -> Option<Mutant> {
        MUTANTS.into_iter().find(|mutant| mutant.name == name)
    }

    /// The functions of the database, with the fault.
    pub fn functions(&self) -> Result<String> {
        let mut functions = migrate::FUNCTIONS.concat();
        for (good, bad) in self.changes {
            ensure!(functions.contains(good), "mutant {}: there is no {good:?} to change", self.name);
            functions = functions.replace(good, bad);
        }
        Ok(functions)
    }

    pub async fn install(&self, owner: &mut PgConnection) -> Result<()> {
        sqlx::raw_sql(AssertSqlSafe(self.functions()?)).execute(owner).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_finds_what_it_breaks() {
        for mutant in MUTANTS {
            assert_ne!(mutant.functions().unwrap(), migrate::FUNCTIONS.concat(), "{}", mutant.name);
        }
    }
}

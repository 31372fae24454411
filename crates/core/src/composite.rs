//! Values that the database takes as rows of a composite type.

/// Lets a value, or a slice of values, be bound as a composite type of the database: its fields, in the order of the type.
///
/// ```ignore
/// composite!(fence: Fence => "state.fence" { fence.project_id, fence.agent_id });
/// ```
#[macro_export]
macro_rules! composite {
    ($value:ident: $kind:ty => $name:literal { $($field:expr),* $(,)? }) => {
        impl sqlx::Type<sqlx::Postgres> for $kind {
            fn type_info() -> sqlx::postgres::PgTypeInfo {
                sqlx::postgres::PgTypeInfo::with_name($name)
            }
        }

        impl sqlx::postgres::PgHasArrayType for $kind {
            fn array_type_info() -> sqlx::postgres::PgTypeInfo {
                sqlx::postgres::PgTypeInfo::array_of($name)
            }
        }

        impl sqlx::Encode<'_, sqlx::Postgres> for $kind {
            fn encode_by_ref(
                &self,
                buffer: &mut sqlx::postgres::PgArgumentBuffer,
            ) -> Result<sqlx::encode::IsNull, sqlx::error::BoxDynError> {
                let $value = self;
                let mut row = sqlx::postgres::types::PgRecordEncoder::new(buffer);
                $(row.encode($field)?;)*
                row.finish();
                Ok(sqlx::encode::IsNull::No)
            }
        }
    };
}

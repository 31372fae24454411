//! The passwords of the three logins. The owner sets them as verifiers (SCRAM-SHA-256, RFC 5803), so that neither the server nor its log sees one.

use std::num::NonZeroU32;

use ring::{
    digest, hmac, pbkdf2,
    rand::{SecureRandom, SystemRandom},
};
use secrecy::{ExposeSecret, SecretString};
use sqlx::{AssertSqlSafe, PgConnection};

use crate::work::{DbError, from_driver};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Other characters would have to be normalised as every client normalises them.
    #[error("the password of {0} must have at least one character, and only letters, digits and signs of ASCII")]
    Password(String),
    #[error(
        "the owner of the database may not set the password of {0}: omit the password here, and let an administrator set it, who made the role"
    )]
    NotOurs(String),
    #[error("the database request failed")]
    Db(#[from] DbError),
}

from_driver!(Error);

/// What servers use by default.
const ITERATIONS: NonZeroU32 = NonZeroU32::new(4096).expect("it is not zero");

/// Checks that a password can be set.
pub fn check_password(login: &str, password: &SecretString) -> Result<(), Error> {
    let password = password.expose_secret();
    match !password.is_empty() && password.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        true => Ok(()),
        false => Err(Error::Password(login.to_owned())),
    }
}

/// Sets the password of a login. Connections that are open stay open.
pub async fn set_password(owner: &mut PgConnection, login: &str, password: &SecretString) -> Result<(), Error> {
    check_password(login, password)?;
    let password = password.expose_secret();
    let mut salt = [0; 16];
    SystemRandom::new().fill(&mut salt).expect("the system has random numbers");
    let (stored, server) = keys(password, &salt);
    let statement: String = sqlx::query_scalar(
        "select format('alter role %I password %L', $1::text,
             $2::text || encode($3::bytea, 'base64') || '$' || encode($4::bytea, 'base64') || ':' || encode($5::bytea, 'base64'))",
    )
    .bind(login)
    .bind(format!("SCRAM-SHA-256${ITERATIONS}:"))
    .bind(&salt[..])
    .bind(&stored[..])
    .bind(&server[..])
    .fetch_one(&mut *owner)
    .await?;
    match sqlx::raw_sql(AssertSqlSafe(statement)).execute(owner).await {
        Err(sqlx::Error::Database(error)) if error.code().as_deref() == Some("42501") => {
            Err(Error::NotOurs(login.to_owned()))
        }
        done => Ok(done.map(drop)?),
    }
}

/// Returns what the server keeps: the hash of the client's key, and its own key.
fn keys(password: &str, salt: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut salted = [0; digest::SHA256_OUTPUT_LEN];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, ITERATIONS, salt, password.as_bytes(), &mut salted);
    let salted = hmac::Key::new(hmac::HMAC_SHA256, &salted);
    let client = hmac::sign(&salted, b"Client Key");
    let server = hmac::sign(&salted, b"Server Key");
    (digest::digest(&digest::SHA256, client.as_ref()).as_ref().to_vec(), server.as_ref().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The password and the salt of the example in RFC 7677.
    #[test]
    fn keys_are_those_of_the_standard() {
        let salt = 0x5b6d_9968_9d12_358e_eca0_4b14_1236_fa81_u128.to_be_bytes();
        let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let (stored, server) = keys("pencil", &salt);
        assert_eq!(hex(stored), "586e5df283e6dceb5c3e791d8b8528ec191e664045ce971792e2e6b5bb13e2a6");
        assert_eq!(hex(server), "c1f3cbc1c13a9d35a14c0990eed97629ea225863e566a4314ab99f3f00e5d9d5");
    }
}

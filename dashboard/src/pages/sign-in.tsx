// Signing in: with the link that `bullpen up` prints, with a token, or at an outside issuer.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { currentSession, type Issuer, type Session, signInWithToken } from "../api";
import { Field, said } from "../parts";

export function SignIn(props: { problem: string; onSignedIn: (session: Session) => void }): JSX.Element {
  const [token, setToken] = useState("");
  const [problem, setProblem] = useState(props.problem);
  const [busy, setBusy] = useState(false);
  const [issuers, setIssuers] = useState<Issuer[]>([]);
  useEffect(() => {
    currentSession()
      .then((found) => setIssuers(Array.isArray(found) ? found : []))
      .catch((error: unknown) => setProblem(said(error)));
  }, []);
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    try {
      props.onSignedIn(await signInWithToken(token.trim()));
    } catch (error) {
      setProblem(said(error));
      setBusy(false);
    }
  };
  return (
    <main class="sign-in" id="content">
      <div class="card">
        <h1>
          <img src="/dashboard/icon.svg" alt="" width="32" height="32" /> Bullpen
        </h1>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        {issuers.map((issuer) => (
          <p key={issuer.path}>
            <a class="button primary" href={issuer.path}>
              Sign in with {issuer.name}
            </a>
          </p>
        ))}
        <p>
          Open the link that <code>bullpen dashboard</code> prints on the machine of the service, or
          paste a token.
        </p>
        <form onSubmit={(event) => void submit(event)}>
          <Field label="Token" hint="Of a jmp client config (token:) or of a kubeconfig (token:)">
            {(id) => (
              <input
                id={id}
                type="password"
                autocomplete="off"
                value={token}
                onInput={(event) => setToken(event.currentTarget.value)}
              />
            )}
          </Field>
          <button class="primary" disabled={busy || !token.trim()}>
            Sign in
          </button>
        </form>
      </div>
    </main>
  );
}

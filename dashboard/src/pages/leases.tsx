// Leases: mine first, and a form for a new one that shows what matches while one types.
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { type ClientName, get, type Session } from "../api";
import { type Claim, type Lab, type Lease, type TargetState, useLab } from "../lab";
import { endOf, extend, isMine, leasesAndClaims, openConsole, release, takeLease, transfer } from "../leasing";
import {
  Action,
  Badge,
  BeginField,
  ClientField,
  duration,
  Empty,
  Field,
  said,
  State,
  TargetLink,
  useTicking,
  When,
} from "../parts";
import { href, usePlace } from "../router";
import { NewClaim } from "./new-claim";

interface Matches {
  total: number;
  free: number;
  targets: { name: string; state: TargetState }[];
}

const TYPING_MS = 200;

export function useMatches(ns: string, selector: string): { found: Matches | null; problem: string } {
  const [state, setState] = useState<{ found: Matches | null; problem: string }>({
    found: null,
    problem: "",
  });
  useEffect(() => {
    if (!ns) return;
    let current = true;
    const timer = setTimeout(async () => {
      const query = new URLSearchParams({ namespace: ns, selector });
      try {
        const found = await get<Matches>(`matches?${query}`);
        if (current) setState({ found, problem: "" });
      } catch (error) {
        if (current) setState({ found: null, problem: said(error) });
      }
    }, TYPING_MS);
    return () => {
      current = false;
      clearTimeout(timer);
    };
  }, [ns, selector]);
  return state;
}

export function Leases({ session }: { session: Session }): JSX.Element {
  const lab = useLab();
  const [claiming, setClaiming] = useState(false);
  useTicking();
  const all = leasesAndClaims().sort((a, b) => b.created.localeCompare(a.created));
  // A user who is no client leases as the first one offered.
  const me = session.own.length ? session.own : session.clients.slice(0, 1);
  const mine = all.filter((lease) => isMine(lease, me));
  const others = all.filter((lease) => !isMine(lease, me));
  return (
    <>
      <h1>Leases</h1>
      {claiming ? (
        <NewClaim session={session} onClose={() => setClaiming(false)} />
      ) : (
        <NewLease session={session} onClaim={() => setClaiming(true)} />
      )}
      <datalist id="clients">
        {session.clients.map((client) => (
          <option value={client.name} key={`${client.ns}/${client.name}`} />
        ))}
      </datalist>
      <h2>Mine</h2>
      {!mine.length && <Empty>You have no lease.</Empty>}
      {mine.map((lease) => (
        <Card key={lease.name} found={lease} session={session} lab={lab} mine />
      ))}
      <h2>Others</h2>
      {!others.length && <Empty>Nobody else has one.</Empty>}
      {others.slice(0, 200).map((lease) => (
        <Card key={lease.name} found={lease} session={session} lab={lab} mine={false} />
      ))}
      {others.length > 200 && <Empty>{others.length - 200} more are not shown.</Empty>}
    </>
  );
}

function NewLease(props: { session: Session; onClaim: () => void }): JSX.Element | null {
  const { session } = props;
  const { query } = usePlace();
  const [chosen, setChosen] = useState(0);
  const [selector, setSelector] = useState(query.get("selector") ?? "");
  const [length, setLength] = useState("30m");
  const [begin, setBegin] = useState("");
  const client: ClientName | undefined = session.clients[chosen];
  const { found, problem } = useMatches(client?.ns ?? "", selector);
  if (!client) return <Empty>You are no client, and may act as none, so you cannot lease.</Empty>;
  const booked = begin ? new Date(begin).toISOString() : "";
  const wanted = { client, selector, duration: length, begin: booked };
  return (
    <section class="card" aria-labelledby="new-lease">
      <h2 id="new-lease">New lease</h2>
      <div class="form form-lease">
        <Field label="Labels" hint="For example: board=uboot, or arch in (arm64, riscv64)">
          {(id) => (
            <input
              id={id}
              value={selector}
              autocomplete="off"
              spellcheck={false}
              onInput={(event) => setSelector(event.currentTarget.value)}
            />
          )}
        </Field>
        <Field label="For">
          {(id) => (
            <select
              id={id}
              value={length}
              onChange={(event) => setLength(event.currentTarget.value)}
            >
              <option value="10m">10 minutes</option>
              <option value="30m">30 minutes</option>
              <option value="1h">1 hour</option>
              <option value="4h">4 hours</option>
              <option value="8h">8 hours</option>
            </select>
          )}
        </Field>
        <BeginField value={begin} onInput={setBegin} />
        <ClientField clients={session.clients} value={chosen} onChange={setChosen} />
      </div>
      <p class="matches" role="status">
        {problem && <span class="problem">{problem}</span>}
        {found && (
          <>
            <strong>{found.total}</strong> {found.total === 1 ? "target matches" : "targets match"},{" "}
            <strong>{found.free}</strong> free.{" "}
            {found.targets.slice(0, 6).map((target) => (
              <span key={target.name} class="match">
                {target.name} <State state={target.state} />
              </span>
            ))}
            {found.total > 6 && "…"}
          </>
        )}
      </p>
      {!selector && <p class="quiet">Fill in labels to lease one of them.</p>}
      <div class="card-actions">
        {!begin && (
          <Action class="primary" disabled={!selector} run={() => openConsole(wanted)}>
            Lease and open the console
          </Action>
        )}
        <Action disabled={!selector} run={async () => void (await takeLease(wanted))}>
          {begin ? "Book" : "Lease"}
        </Action>
      </div>
      <p>
        <button onClick={props.onClaim}>Claim several targets at once…</button>
      </p>
    </section>
  );
}

const PHASES = { scheduled: "Booked", waiting: "Waiting", active: "Active", ended: "Ended" };
const KINDS = { scheduled: "kind", waiting: "starting", active: "leased", ended: "disabled" };

interface CardProps {
  session: Session;
  lab: Lab;
  mine: boolean;
}

function Card(props: CardProps & { found: Lease | Claim }): JSX.Element {
  const { found, ...rest } = props;
  if ("requests" in found) return <ClaimCard claim={found} {...rest} />;
  return <LeaseCard lease={found} {...rest} />;
}

function LeaseCard(props: CardProps & { lease: Lease }): JSX.Element {
  const { lease, session } = props;
  return (
    <article class="card lease" aria-label={`Lease ${lease.name}`}>
      <header>
        <Badge kind={KINDS[lease.phase]}>{PHASES[lease.phase]}</Badge>
        <strong>{lease.client}</strong>
        {lease.target ? <TargetLink ns={lease.ns} name={lease.target} /> : <code>{lease.wanted}</code>}
        <span class="quiet">
          {{ active: "ends ", scheduled: "begins " }[lease.phase as string] ?? "asked "}
          <When
            time={{ active: lease.end, scheduled: lease.begin }[lease.phase as string] ?? lease.created}
          />
        </span>
      </header>
      {lease.phase === "waiting" && <p>{lease.message || "no decision yet"}</p>}
      <div class="card-actions">
        {lease.phase === "active" && isMine(lease, session.clients) && (
          <a class="button" href={href("console", lease.ns, lease.name)}>
            Console
          </a>
        )}
        <HolderActions found={lease} mine={props.mine} what="lease" />
      </div>
    </article>
  );
}

function ClaimCard(props: CardProps & { claim: Claim }): JSX.Element {
  const { claim, session, lab } = props;
  const usable = claim.phase === "active" && isMine(claim, session.clients);
  const conditions = claim.constraints.length > 0 && ` (${claim.constraints.join(", ")})`;
  return (
    <article class="card lease" aria-label={`Claim ${claim.name}`}>
      <header>
        <Badge kind={KINDS[claim.phase]}>{PHASES[claim.phase]}</Badge>
        <strong>{claim.client}</strong>
        <span>
          Claim <strong>{claim.name}</strong>
        </span>
        <span class="quiet">
          {claim.phase === "active" ? "ends " : claim.phase === "scheduled" ? "begins " : "asked "}
          <When
            time={
              claim.phase === "active"
                ? endOf(claim)
                : claim.phase === "scheduled"
                  ? claim.begin
                  : claim.created
            }
          />
          {claim.seconds !== null && ` · for ${duration(claim.seconds)}`}
          {claim.priority !== 0 && ` · priority ${claim.priority}`}
        </span>
      </header>
      {claim.warning && <p class="problem">{claim.warning}</p>}
      {claim.phase !== "active" && (
        <>
          <p>
            Asks for {claim.requests.join("; ")}
            {conditions}
          </p>
          <p>
            {claim.reason && <Badge kind="kind">{claim.reason}</Badge>}{" "}
            {claim.message || "no decision yet"}
          </p>
        </>
      )}
      {claim.phase === "active" && (
        <ul class="plain" aria-label={`Targets of claim ${claim.name}`}>
          {claim.members.map((member) => (
            <li class="line member" key={member.request + member.device}>
              <strong>{member.request}</strong>
              <span>
                {lab.target.has(`${claim.ns}/${member.device}`) ? (
                  <TargetLink ns={claim.ns} name={member.device} />
                ) : (
                  member.device
                )}
                {member.alternative && <span class="quiet"> ({member.alternative})</span>}
              </span>
              {usable && member.lease && (
                <a class="button" href={href("console", claim.ns, member.lease)}>
                  Console<span class="unseen"> of {member.device}</span>
                </a>
              )}
            </li>
          ))}
        </ul>
      )}
      {claim.phase === "active" && claim.reason !== "Ready" && claim.message && <p>{claim.message}</p>}
      <div class="card-actions">
        <HolderActions found={claim} mine={props.mine} what="claim" />
      </div>
    </article>
  );
}

/** What the holder of a lease or claim may do with it. */
function HolderActions(props: { found: Lease | Claim; mine: boolean; what: string }): JSX.Element {
  const { found } = props;
  const [receiver, setReceiver] = useState("");
  return (
    <>
      {found.phase === "active" && (
        <Action run={() => extend(found, 30 * 60)}>Extend by 30 min</Action>
      )}
      {found.phase === "active" && (
        <span class="scale">
          <label>
            Transfer to{" "}
            <input
              size={10}
              value={receiver}
              list="clients"
              onInput={(event) => setReceiver(event.currentTarget.value)}
            />
          </label>
          <Action disabled={!receiver} run={() => transfer(found, receiver)}>
            Transfer
          </Action>
        </span>
      )}
      <Action
        run={() => release(found)}
        {...(props.mine ? {} : { confirm: `End the ${props.what} of ${found.client}?` })}
      >
        Release
      </Action>
    </>
  );
}
